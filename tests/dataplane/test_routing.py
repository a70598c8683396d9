"""Rules at work: requests reach the engine, model name and arm that the rules give."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.net import http1_server
from tests.dataplane.stage import DEADLINE, Engine, get, load, post, run, stage, until

INFER = "/v2/models/m/infer"


async def engines(*names: str) -> dict[str, Engine]:
    made = {name: Engine() for name in names}
    for engine in made.values():
        await engine.start()
    return made


def declare(made: dict[str, Engine], routes: str, more: str = "") -> str:
    lines = "".join(f"  {name}: {{endpoints: ['{engine.url}']}}\n" for name, engine in made.items())
    return f"version: 1\nengines:\n{lines}routes:\n{routes}{more}"


def tensor(datatype: str, shape: list[int], **more: object) -> dict[str, object]:
    return {"name": "x", "datatype": datatype, "shape": shape, **more}


BY_TENANT = """\
  - {name: ours, match: {tenant: "caf\u00e9"}, engine: a}
  - {name: all, engine: a}
"""


def test_a_header_says_what_a_rule_says_in_any_encoding(tmp_path: Path) -> None:
    """A header value matches a rule whether its client encodes it in UTF-8 or in Latin-1."""

    async def scene() -> None:
        made = await engines("a")
        async with stage(declare(made, BY_TENANT), tmp_path) as it:
            for tenant, route in (("caf\u00e9".encode(), "ours"), (b"caf\xe9", "ours"), (b"cafe", "all")):
                reply = await it.ask(post(INFER, b"{}", "X-Tenant: NAME").replace(b"NAME", tenant))
                assert reply.headers["x-pointsman-route"] == route
        made["a"].stop()

    run(scene())


BY_TENSOR = """\
  - {name: images, match: {input: {datatype: [FP32, UINT8], rank: 4}}, engine: images}
  - {name: rest, engine: rest}
"""


def test_rules_on_tensors(tmp_path: Path) -> None:
    """A rule reads datatype and rank from the JSON, whether it is plain, compressed, or followed by binary tensors."""
    image = json.dumps({"inputs": [tensor("FP32", [1, 1, 1, 2], data=[1, 2])]}).encode()
    vector = json.dumps({"inputs": [tensor("FP32", [2], data=[1, 2])]}).encode()
    binary = json.dumps({"inputs": [tensor("UINT8", [1, 2, 2, 1], parameters={"binary_data_size": 4})]}).encode()
    length = f"Inference-Header-Content-Length: {len(binary)}"

    async def scene() -> None:
        made = await engines("images", "rest")
        async with stage(declare(made, BY_TENSOR), tmp_path) as it:

            async def route(request: bytes) -> str:
                reply = await it.ask(request)
                assert reply.status == 200
                return reply.headers["x-pointsman-route"]

            assert await route(post(INFER, image)) == "images"
            assert await route(post(INFER, vector)) == "rest"
            assert await route(post(INFER, gzip.compress(image), "Content-Encoding: gzip")) == "images"
            assert await route(post(INFER, binary + bytes(4), length)) == "images"
            assert (await it.ask(post(INFER, b"not JSON"))).status == 400  # it might be for either
            assert await route(get("/v2/models/m")) == "rest"
        for engine in made.values():
            engine.stop()

    run(scene())


def test_the_binary_tail_is_not_waited_for(tmp_path: Path) -> None:
    """A rule on tensors decides once the JSON has arrived: the engine gets a request that is not held while the binary
    tensor is still arriving."""
    binary = json.dumps({"inputs": [tensor("UINT8", [1, 2, 2, 1], parameters={"binary_data_size": 4})]}).encode()

    async def scene() -> None:
        made = await engines("images", "rest")
        async with stage(declare(made, BY_TENSOR), tmp_path, limits={"retry_body_bytes": 1}) as it:
            client = await it.client()
            whole = post(INFER, binary + b"abcd", f"Inference-Header-Content-Length: {len(binary)}")
            await client.send(whole[:-4])
            await until(lambda: made["images"].num_open == 1)
            await client.send(b"abcd")
            assert (await client.reply()).status == 200
            assert made["images"].received[0].body == binary + b"abcd"
        for engine in made.values():
            engine.stop()

    run(scene())


def test_a_waiting_client_is_asked_for_its_body(tmp_path: Path) -> None:
    """When a rule needs the body, a client that expects 100-continue gets 100."""

    async def scene() -> None:
        made = await engines("images", "rest")
        async with stage(declare(made, BY_TENSOR), tmp_path) as it:
            client = await it.client()
            await client.send(
                f"POST {INFER} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n".encode()
            )
            assert (await client.head())[0] == 100
            assert (await client.ask(b"{}")).headers["x-pointsman-route"] == "rest"
        for engine in made.values():
            engine.stop()

    run(scene())


def test_renames_and_headers(tmp_path: Path) -> None:
    """A route renames the model in the path, and a header chooses the route."""
    routes = """\
  - {name: premium, match: {model: chat, header: {x-tier: premium}}, engine: a, model: "big model"}
  - {name: rest, engine: b}
"""

    async def scene() -> None:
        made = await engines("a", "b")
        async with stage(declare(made, routes), tmp_path) as it:
            await it.ask(post("/v2/models/chat/versions/3/infer?x=1", b"{}", "X-Tier: premium"))
            await it.ask(post("/v2/models/chat/versions/3/infer", b"{}", "X-Tier: free"))
            await it.ask(post("/v2/models/other/infer", b"{}", "X-Tier: premium"))
        assert [received.line for received in made["a"].received] == [
            "POST /v2/models/big%20model/versions/3/infer?x=1 HTTP/1.1"
        ]
        assert len(made["b"].received) == 2
        for engine in made.values():
            engine.stop()

    run(scene())


SPLIT = """\
  - {name: split, experiment: move}
experiments:
  move:
    arms:
      - {name: old, engine: a, weight: 50}
      - {name: new, engine: b, weight: 50}
"""


def test_sessions_keep_their_arm(tmp_path: Path) -> None:
    """A session named by a header or by a body parameter stays on its arm; sessions split by weight."""

    async def scene() -> None:
        made = await engines("a", "b")
        async with stage(declare(made, SPLIT), tmp_path) as it:
            client = await it.client()
            arms: dict[int, str] = {}
            for session in range(60):
                body = json.dumps({"parameters": {"session_id": f"s{session}"}}).encode()
                by_header = [await client.ask(post(INFER, b"{}", f"X-Session-Id: s{session}")) for _ in range(3)]
                by_parameter = await client.ask(post(INFER, body))
                report = {reply.headers["x-pointsman-arm"] for reply in (*by_header, by_parameter)}
                assert len(report) == 1
                arms[session] = report.pop()
            assert 15 < list(arms.values()).count("old") < 45
        for engine in made.values():
            engine.stop()

    run(scene())


def test_new_rules_meet_new_requests(tmp_path: Path) -> None:
    """A request finishes under the rules that it started with; the next one on the same connection uses the new rules.
    Endpoints that remain keep their connections; removed ones lose their idle ones."""

    async def scene() -> None:
        made = await engines("a", "b")
        routes = "  - {name: first, engine: %s}\n"
        async with stage(declare(made, routes % "a"), tmp_path) as it:
            client = await it.client()
            assert (await client.ask(post())).headers["x-pointsman-engine"] == "a"
            await client.send(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{".encode())
            await until(lambda: it.plane.held.num_held)
            it.plane.use_rules(load(declare({"a": made["a"], "b": made["b"]}, routes % "b"), tmp_path), 2)
            assert (await client.ask(b"}")).headers["x-pointsman-engine"] == "a"
            assert (await client.ask(post())).headers["x-pointsman-engine"] == "b"
            assert made["a"].num_connections == 1
            it.plane.use_rules(load(declare({"b": made["b"]}, routes % "b"), tmp_path), 3)
            await until(lambda: made["a"].num_open == 0)
            assert (await client.ask(post())).headers["x-pointsman-engine"] == "b"
            assert made["b"].num_connections == 1
            assert it.plane.snapshot.number == 3
        for engine in made.values():
            engine.stop()

    run(scene())


def test_a_reply_that_has_begun_is_followed_by_one_that_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain during a reply, whose head has announced no end, leaves the connection to the next request: its reply has
    `connection: close`."""
    monkeypatch.setattr(http1_server, "_DRAIN_SECONDS", DEADLINE)

    async def scene() -> None:
        goes_on = asyncio.Event()

        async def answer(engine: Engine, received: Any, reader: Any, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
            await goes_on.wait()
            writer.write(b"cd")

        await (engine := Engine(answer)).start()
        async with stage(declare({"a": engine}, "  - {name: all, engine: a}\n"), tmp_path) as it:
            client = await it.client()
            await client.send(post())
            status, headers = await client.head()
            assert status == 200 and "connection" not in headers
            it.plane.drain()
            goes_on.set()
            assert await asyncio.wait_for(client.reader.readexactly(4), DEADLINE) == b"abcd"
            assert (await client.ask(post())).headers["connection"] == "close"
            assert await client.at_end()
        engine.stop()

    run(scene())


def test_draining(tmp_path: Path) -> None:
    """Draining closes idle connections at once, and the others after a reply with `connection: close`."""

    async def scene() -> None:
        made = await engines("a")
        async with stage(declare(made, "  - {name: all, engine: a}\n"), tmp_path) as it:
            idle, busy = await it.client(), await it.client()
            assert (await idle.ask(post())).status == 200
            await busy.send(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{".encode())
            await until(lambda: it.plane.held.num_held)
            it.plane.drain()
            assert await idle.at_end()
            reply = await busy.ask(b"}")
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert await busy.at_end()
        made["a"].stop()
        await asyncio.sleep(0)

    run(scene())
