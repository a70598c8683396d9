"""A field that decides what happens to a request and stands twice with different values: rules would read the first, an
engine or a proxy before the gateway means another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.dataplane.grpc.peers import STREAM, UNARY
from tests.dataplane.grpc.stage import grpc_stage, request
from tests.dataplane.stage import Engine, post, run

RULES = """version: 1
engines:
  it: {{endpoints: ["{url}"], balance: session, health: {{interval: 0}}}}
  plain: {{endpoints: ["{url}"], health: {{interval: 0}}}}
  llm: {{protocol: openai, endpoints: ["{url}"], health: {{interval: 0}}}}
experiments:
  x: {{unit: "header:x-user", arms: [{{engine: plain, name: a, weight: 1}}, {{engine: plain, name: b, weight: 1}}]}}
routes:
  - {{name: acme, match: {{tenant: acme}}, engine: it}}
  - {{name: tier, match: {{header: {{x-tier: gold}}}}, engine: it}}
  - {{name: tried, match: {{model: tried}}, experiment: x}}
  - {{name: plain, match: {{model: plain}}, engine: plain}}
  - {{name: chats, match: {{model: chat}}, engine: llm}}
  - {{name: rest, engine: it}}
limits:
  - {{name: each, per: [key, "header:x-org"], requests_per_second: 1000}}
"""
PLAIN_RULES = """version: 1
engines:
  plain: {{endpoints: ["{url}"], health: {{interval: 0}}}}
routes:
  - {{name: plain, engine: plain}}
limits:
  - {{name: each, per: ["header:x-org"], requests_per_second: 1000}}
"""
NAMES = ["x-tenant", "X-Tier", "x-session-id", "x-user", "x-org", "authorization"]


@pytest.mark.parametrize("rules", [RULES, PLAIN_RULES])
def test_it_is_refused(tmp_path: Path, rules: str) -> None:
    """400 and INVALID_ARGUMENT name the field, over HTTP/1.1, HTTP/2 and gRPC; the engine gets nothing. The same value
    twice, and a field that decides nothing, pass."""
    names = NAMES if rules is RULES else ["x-org"]

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with grpc_stage(rules.format(url=engine.url), tmp_path) as it:
            client, peer = await it.client(), await it.grpc()
            for name in names:
                key = name.lower()
                for model in ("m", "tried", "plain"):
                    asked = post(f"/v2/models/{model}/infer", b"{}", f"{name}: acme", "x-other: 1", f"{key}:  mallory")
                    for _ in range(3):  # read, and known
                        reply = await client.ask(asked)
                        assert (reply.status, reply.reason) == (400, "bad_request"), (name, reply)
                        assert key in json.loads(reply.body)["error"]
                for _ in range(2):
                    fields = [(key, "acme"), (key, "mallory")]
                    call = peer.request("POST", "/v2/models/m/infer", *fields, ("content-length", "2"))
                    await call.send_raw(b"{}", ended=True)
                    assert (await call.over()).value(":status") == "400", name
                    for path in (UNARY, STREAM):
                        reply = await peer.ask(request("m"), path=path, metadata=fields)
                        assert (reply.status, reply.value("x-pointsman-reason")) == (3, "bad_request"), (name, path)
            assert not engine.received
            twice = ["x-org: acme", "X-Org: acme", "accept: a/b", "accept: c/d", "x-other: 1", "x-other: 2"]
            for _ in range(2):
                assert (await client.ask(post("/v2/models/m/infer", b"{}", *twice))).status == 200
        engine.stop()

    run(scene())


def test_calls_that_repeat_their_fields(tmp_path: Path) -> None:
    """A gRPC client whose calls have been known with one value of a field cannot add another."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with grpc_stage(PLAIN_RULES.format(url=engine.url), tmp_path) as it:
            peer = await it.grpc()
            for number in range(6):
                fields = [("x-org", "acme"), ("x-number", str(number))]
                await peer.ask(request("m"), metadata=fields)
                assert len(engine.received) == number + 1
            for number in range(3):
                fields = [("x-org", "acme"), ("x-number", str(number)), ("x-org", f"evil{number}")]
                assert (await peer.ask(request("m"), metadata=fields)).status == 3
            assert len(engine.received) == 6
        engine.stop()

    run(scene())


def test_a_chat_gets_an_error_of_its_api(tmp_path: Path) -> None:
    """OpenAI's and Anthropic's clients read an error of theirs."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with grpc_stage(RULES.format(url=engine.url), tmp_path) as it:
            for name in ("x-org", "x-tenant"):
                asked = post("/v1/chat/completions", b'{"model":"chat"}', f"{name}: a", f"{name}: b")
                reply = await it.ask(asked)
                assert (reply.status, json.loads(reply.body)["error"]["type"]) == (400, "invalid_request_error")
                reply = await it.ask(asked.replace(b"chat/completions", b"messages"))
                assert (reply.status, json.loads(reply.body)["type"]) == (400, "error")
            assert not engine.received
        engine.stop()

    run(scene())
