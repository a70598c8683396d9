"""`strip:` and `headers: {name: null}` keep clients' fields, such as their credentials, from an engine."""

from __future__ import annotations

import json
from pathlib import Path

from tests.dataplane.grpc.peers import STREAM, UNARY, GrpcEngine
from tests.dataplane.grpc.stage import grpc_stage, request
from tests.dataplane.stage import Engine, get, post, run
from tests.dataplane.test_reply_fields import answer

RULES = """version: 1
engines:
  rest:
    endpoints: ["{rest}"]
    health: {{interval: 0}}
    strip: [Authorization, x-forwarded-for, x-request-id]
    headers: {{Cookie: null, x-own: ours}}
  keyed:
    endpoints: ["{rest}"]
    health: {{interval: 0}}
    strip: cookie
    headers: {{authorization: null}}
    api_key: ours
  grpc:
    endpoints: ["{grpc}"]
    health: {{interval: 0}}
    strip: [authorization, x-request-id]
    headers: {{cookie: null}}
  llm: {{protocol: openai, endpoints: ["{rest}"], health: {{interval: 0}}, strip: [authorization, cookie]}}
routes:
  - {{name: calls, match: {{model: called}}, engine: grpc}}
  - {{name: keyed, match: {{model: keyed}}, engine: keyed}}
  - {{name: chats, match: {{protocol: openai}}, engine: llm}}
  - {{name: generations, match: {{model: generated}}, engine: llm}}
  - {{name: rest, engine: rest}}
"""
SECRET = [("authorization", "Bearer secret"), ("cookie", "id=secret"), ("x-request-id", "mine"), ("x-own", "theirs")]
INFER = b'{"inputs":[]}'


def test_what_an_engine_does_not_receive(tmp_path: Path) -> None:
    """By REST, HTTP/2 and gRPC, as it is, converted, translated and to all of an engine; other fields go on."""

    async def scene() -> None:
        engine, called = Engine(), await GrpcEngine(answer).start()
        await engine.start()
        rules = RULES.format(rest=engine.url, grpc=called.url)
        lines = [f"{name}: {value}" for name, value in [*SECRET, ("x-other", "kept")]]
        fields = [*SECRET, ("x-other", "kept")]
        async with grpc_stage(rules, tmp_path) as it:
            peer = await it.grpc()
            for _ in range(2):
                await it.ask(post("/v2/models/m/infer", INFER, *lines))
                await it.ask(get("/v2/models/m", *lines))
                await it.ask(get("/v2/models/m/stats", *lines))
                await it.ask(post("/v2/models/called/infer", INFER, *lines))
                await it.ask(post("/v2/models/generated/generate", b'{"text_input":"hi"}', *lines))
                await it.ask(post("/v1/chat/completions", b'{"model":"m","messages":[]}', *lines))
                call = peer.request("POST", "/v2/models/m/infer", *fields, ("content-length", str(len(INFER))))
                await call.send_raw(INFER, ended=True)
                await call.over()
                for path in (UNARY, STREAM):
                    for model in ("m", "called"):
                        await peer.ask(request(model), path=path, metadata=fields)
            num_passed = len(engine.received)
            await it.ask(post("/v2/models/keyed/infer", INFER, *lines))
        assert num_passed >= 16
        assert len(called.calls) >= 6
        for received in engine.received[:num_passed]:
            assert b"secret" not in received.head, received.head
            if "/v1/" not in received.line:
                assert received.value("x-own") == "ours"
                assert received.value("x-request-id") is None
                assert received.value("x-forwarded-for") is None
        assert sum(received.value("x-other") == "kept" for received in engine.received) >= 12
        assert engine.received[-1].value("authorization") == "Bearer ours"
        assert engine.received[-1].value("cookie") is None
        for sent in called.calls:
            assert "secret" not in json.dumps(sent.fields), sent.fields
        engine.stop()
        await called.stop()

    run(scene())
