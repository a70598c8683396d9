"""Names of models that an engine reads otherwise than the rules are refused, or rules read them as the engine does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.dataplane.grpc.peers import STREAM, UNARY
from tests.dataplane.grpc.stage import grpc_stage, request
from tests.dataplane.stage import Engine, ReceivedRequest, get, post, run, stage

METADATA = "/inference.GRPCInferenceService/ModelMetadata"
ROUTES = """routes:
  - {name: denied, match: {model: secret}, engine: denying}
  - {name: renamed, match: {model: "public/*"}, engine: engine, model: free}
  - {name: rest, engine: engine}
"""
RULES = """version: 1
engines:
  engine: {{endpoints: ["{engine}"], protocol: {protocol}, health: {{interval: 0}}}}
  denying: {{endpoints: ["{denying}"], health: {{interval: 0}}}}
"""
INFER = b'{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[1]}]}'
GENERATE = json.dumps({"text_input": "hi"}).encode()


async def _served(request: Request) -> JSONResponse:
    model = request.path_params["model_name"]
    return JSONResponse({"name": model, "model_name": model, "versions": ["1"], "outputs": [], "ready": True})


# The routes of MLServer's REST server (mlserver/rest/app.py), by which a decoded path is matched.
_PATHS = [
    f"/v2/models/{{model_name}}{version}{action}"
    for version in ("", "/versions/{model_version}")
    for action in ("", "/ready", "/config", "/infer", "/generate", "/generate_stream")
]
MLSERVER = Starlette(routes=[Route(path, _served, methods=["GET", "POST"]) for path in _PATHS])


@asynccontextmanager
async def starlette_engine() -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(MLSERVER, port=0, log_level="error", lifespan="off", loop="none"))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


async def deny(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\n{}")


AMBIGUOUS = [
    post("/v2/models/secret%2fversions%2f1/infer", INFER),
    post("/v2/models/secret%2Finfer/infer", INFER),
    post("/v2/models/x%2f..%2fsecret/infer", INFER),
    post("/v2/models/%2e%2E/infer", INFER),
    post("/v2/models/..%5csecret/infer", INFER),
    post("/v2/models/..\\secret/infer", INFER),
    post("/v2/models/secret%00/infer", INFER),
    post("/v2/models/x%2f..%2fsecret/generate", GENERATE),
    post("/v2/repository/models/x%2f..%2fsecret/load", b"{}"),
    get("/v2/models/secret%2fversions%2f1"),
    get("/v2/models/secret%2fversions%2f1%2finfer"),
    get("/v2/models/secret%2fready"),
    get("/v2/models/secret%2fconfig"),
    get("/v2/models/secret%2fversions%2f1/config"),
    get("/v2/models/.."),
    get("/v2/models/%2e/ready"),
    get("/v2/models/secret#x"),
    get("http://gateway/v2/models/secret%2fready"),
]


def test_no_path_reaches_a_model_past_its_rules(tmp_path: Path) -> None:
    """A Starlette engine decodes a path before it is routed; such paths are refused with the reason, over HTTP/1.1 and
    HTTP/2."""

    async def scene() -> None:
        denying = Engine(deny)
        await denying.start()
        async with starlette_engine() as url:
            rules = RULES.format(engine=url, denying=denying.url, protocol="mlserver") + ROUTES
            async with grpc_stage(rules, tmp_path) as it:
                assert (await it.ask(post("/v2/models/secret/infer", INFER))).status == 403
                assert json.loads((await it.ask(post("/v2/models/free/infer", INFER))).body)["model_name"] == "free"
                assert (await it.ask(get("/v2/models/a%20b.c%3a%25"))).status == 200
                for asked in AMBIGUOUS:
                    reply = await it.ask(asked)
                    assert (reply.status, reply.reason) == (400, "bad_request"), (asked, reply)
                    assert "--encoded-slashes" in json.loads(reply.body)["error"]
                call = (await it.grpc()).request("GET", "/v2/models/secret%2fversions%2f1", ended=True)
                assert (await call.over()).value(":status") == "400"
        denying.stop()

    run(scene())


def test_names_that_would_become_another_path(tmp_path: Path) -> None:
    """A gRPC client's name with a slash, or a version that is no number, is refused where it would become a path; so is
    that of a chat. Where the rules give the name at the engine, the client's may have slashes."""

    async def scene() -> None:
        denying = Engine(deny)
        await denying.start()
        async with starlette_engine() as url:
            rules = RULES.format(engine=url, denying=denying.url, protocol="kserve") + ROUTES
            async with grpc_stage(rules, tmp_path) as it:
                peer = await it.grpc()
                for name in ("secret/versions/1", "..", "x/../secret", "x\\secret", "secret\0"):
                    for rpc in (UNARY, METADATA):
                        reply = await peer.ask(request(name) if rpc is UNARY else _named(name), path=rpc)
                        assert (reply.status, reply.value("x-pointsman-reason")) == (3, "bad_request"), (name, rpc)
                    reply = await peer.ask(request(name), path=STREAM)
                    assert b"--encoded-slashes" in reply.messages[0], name
                for version in ("1/../..", "1 HTTP/1.1\r\nhost: x\r\n\r\nGET /", "²"):
                    assert (await peer.ask(request("free", model_version=version))).status == 3
                    reply = await peer.ask(request("free", model_version=version), path=STREAM)
                    assert b"is no number" in reply.messages[0], version
                chat = {"model": "x/../secret", "messages": [{"role": "user", "content": "hi"}]}
                reply = await it.ask(post("/v1/chat/completions", json.dumps(chat).encode()))
                assert (reply.status, reply.reason) == (400, "bad_request")
                reply = await it.ask(post("/v1/embeddings", b'{"model": "x/../secret", "input": "a"}'))
                assert (reply.status, reply.reason) == (400, "bad_request")
                assert (await peer.ask(request("public/a"))).status == 0
        denying.stop()

    run(scene())


def _named(name: str) -> bytes:
    from tritonclient.grpc import service_pb2

    return bytes(service_pb2.ModelMetadataRequest(name=name).SerializeToString())


def test_encoded_slashes(tmp_path: Path) -> None:
    """The option passes such names on as they came."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        rules = RULES.format(engine=engine.url, denying=engine.url, protocol="kserve") + ROUTES
        async with grpc_stage(rules, tmp_path, encoded_slashes=True) as it:
            assert (await it.ask(post("/v2/models/a%2fb/infer", INFER))).status == 200
            assert (await it.ask(post("/v2/models/../infer", INFER))).status == 200
            await (await it.grpc()).ask(request("a/b"))
        lines = [received.line.split(" ")[1] for received in engine.received]
        assert lines == ["/v2/models/a%2fb/infer", "/v2/models/../infer", "/v2/models/a%2Fb/infer"]
        engine.stop()

    run(scene())


@pytest.mark.parametrize(
    ("protocol", "name", "options"),
    [
        ("tfserving", "secret:stable", {}),
        ("torchserve", "secret%2f1.0", {"encoded_slashes": True}),
    ],
)
def test_a_name_with_its_label(tmp_path: Path, protocol: str, name: str, options: dict[str, Any]) -> None:
    """Rules read a model's name without the version or label that TF Serving and TorchServe read in it; a route that
    names a label takes it."""
    routes = ROUTES.replace(
        "  - {name: rest", "  - {name: labels, match: {model: '*stable'}, engine: engine}\n  - {name: rest"
    )
    exact = "routes:\n  - {name: labelled, match: {model: ['secret:stable', 'secret/1.0']}, engine: engine}\n"

    async def scene() -> None:
        engine, denying = Engine(), Engine(deny)
        await engine.start()
        await denying.start()
        rules = RULES.format(engine=engine.url, denying=denying.url, protocol=protocol)
        for path in (f"/v2/models/{name}/infer", f"/v2/models/{name.replace('secret', 'free')}/infer"):
            async with grpc_stage(rules + routes, tmp_path, **options) as it:
                for _ in range(3):  # read, decided, cached
                    await (await it.grpc()).ask(request(unquote(path.split("/")[3])))
                    found = await it.ask(post(path, INFER))
                    denied = found.headers["x-pointsman-route"] == "denied"
                    assert denied == ("secret" in path), found
        assert {unquote(received.line.split(" ")[1]) for received in denying.received} == {
            f"/v2/models/{unquote(name)}/infer"
        }
        assert len(denying.received) == 6
        async with stage(rules + exact + routes.removeprefix("routes:\n"), tmp_path, **options) as it:
            reply = await it.ask(post(f"/v2/models/{name}/infer", INFER))
            assert reply.headers["x-pointsman-route"] == "labelled"
        engine.stop()
        denying.stop()

    run(scene())
