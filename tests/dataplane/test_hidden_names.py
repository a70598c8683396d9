"""With `--no-name-decision` no reply tells a client which routes, engines and endpoints there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.config.operation_access import OperationAccess
from gateway.protocol.restricted_apis import CONTROL_OPERATIONS
from tests.dataplane.grpc.peers import STREAM, UNARY, Call, GrpcEngine
from tests.dataplane.grpc.stage import grpc_stage, request
from tests.dataplane.stage import Engine, ReceivedRequest, get, post, run
from tests.support.ports import free_port

RULES = """version: 1
engines:
  hidden-dead: {{endpoints: ["http://127.0.0.1:{dead}"], health: {{interval: 0}}}}
  hidden-odd: {{endpoints: ["{odd}"], health: {{interval: 0}}}}
  hidden-grpc: {{endpoints: ["grpc://127.0.0.1:{dead}"], health: {{interval: 0}}}}
  hidden-broken: {{endpoints: ["{grpc}"], health: {{interval: 0}}}}
  hidden-llm: {{protocol: openai, endpoints: ["http://127.0.0.1:{dead}"], health: {{interval: 0}}}}
  hidden-tf: {{protocol: tfserving, endpoints: ["http://127.0.0.1:{dead}"], health: {{interval: 0}}}}
  hidden-torch: {{protocol: torchserve, endpoints: ["grpc://127.0.0.1:{dead}"], health: {{interval: 0}}}}
routes:
  - {{name: hidden-route1, match: {{model: dead}}, engine: hidden-dead}}
  - {{name: hidden-route2, match: {{model: odd}}, engine: hidden-odd}}
  - {{name: hidden-route3, match: {{model: called}}, engine: hidden-grpc}}
  - {{name: hidden-route4, match: {{model: broken}}, engine: hidden-broken}}
  - {{name: hidden-route5, match: {{model: chat}}, engine: hidden-llm}}
  - {{name: hidden-route6, match: {{model: tf}}, engine: hidden-tf}}
  - {{name: hidden-route7, match: {{model: torch}}, engine: hidden-torch}}
"""
INFER = b'{"inputs":[]}'
TEXT = b'{"text_input":"hi"}'
MODELS = ("dead", "odd", "called", "broken", "chat", "tf", "torch")
OPEN = OperationAccess(frozenset(CONTROL_OPERATIONS.values()))
METADATA = "/inference.GRPCInferenceService/ModelMetadata"


def _named(model: str) -> bytes:
    return bytes(service_pb2.ModelMetadataRequest(name=model).SerializeToString())


async def answer_odd(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: odd\r\n\r\n")


async def answer_broken(call: Call) -> None:
    await call.over()
    call.reset()


@pytest.mark.parametrize("shown", [False, True])
def test_replies(tmp_path: Path, shown: bool) -> None:
    """Errors of dead, odd and broken engines, of operations on all of them, and lists of models, in every protocol."""
    port = free_port()

    async def scene() -> None:
        odd, broken = Engine(answer_odd), await GrpcEngine(answer_broken).start()
        await odd.start()
        rules = RULES.format(dead=port, odd=odd.url, grpc=broken.url)
        told: dict[str, str] = {}
        options = {"name_decision": shown, "operation_access": OPEN}
        async with grpc_stage(rules, tmp_path, **options) as it:
            peer = await it.grpc()
            for model in MODELS:
                chat = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
                asked = {
                    "infer": post(f"/v2/models/{model}/infer", INFER, "x-pointsman-timing: 1"),
                    "generate": post(f"/v2/models/{model}/generate", TEXT),
                    "stream": post(f"/v2/models/{model}/generate_stream", TEXT),
                    "metadata": get(f"/v2/models/{model}"),
                    "config": get(f"/v2/models/{model}/config"),
                    "stats": get(f"/v2/models/{model}/stats"),
                    "load": post(f"/v2/repository/models/{model}/load", b"{}"),
                    "chat": post("/v1/chat/completions", chat),
                    "tokens": post("/v1/messages/count_tokens", chat),
                    "embeddings": post("/v1/embeddings", json.dumps({"model": model, "input": "a"}).encode()),
                    "card": get(f"/v1/models/{model}"),
                }
                for name, data in asked.items():
                    reply = await it.ask(data)
                    told[f"{name} of {model}"] = f"{reply.status} {reply.headers} {reply.body!r}"
                for rpc in (UNARY, STREAM, METADATA):
                    call = await peer.ask(_named(model) if rpc == METADATA else request(model), path=rpc)
                    told[f"{rpc} of {model}"] = f"{call.fields} {call.trailers} {call.messages!r}"
            for path in ("/v1/models", "/v2/models/stats", "/v2/logging", "/v2/trace/setting"):
                reply = await it.ask(get(path))
                told[path] = f"{reply.headers} {reply.body!r}"
        names = ("hidden-", str(port), odd.url.rpartition(":")[2], broken.url.rpartition(":")[2])
        leaks = {what: text for what, text in told.items() if any(name in text for name in names)}
        assert bool(leaks) == shown, leaks
        if shown:
            assert len(leaks) > len(told) // 2
        odd.stop()
        await broken.stop()

    run(scene())
