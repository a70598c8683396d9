"""One probe of an endpoint: when it is ready, unready or down."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import orjson
import pytest
from h2.errors import ErrorCodes
from tritonclient.grpc import service_pb2

from gateway.config.engine_specs import EndpointSpec, EngineSpec, HealthSpec, LoadSpec, ModelsSpec
from gateway.protocol.advertised_models import AdvertisedModels, read_model_list
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.protocol.errors import GatewayError
from gateway.upstream import probe as probe_module
from gateway.upstream.probe import EndpointProbe
from tests.dataplane.grpc.peers import Call, GrpcEngine
from tests.dataplane.stage import Engine, ReceivedRequest, run, until


def spec(url: str, **more: Any) -> EngineSpec:
    health = HealthSpec(timeout=0.2 if more.pop("is_silent", False) else 30.0)
    return EngineSpec("it", (EndpointSpec(url),), health=health, api_key="secret", **more)


def says(*messages: bytes, status: int = 0) -> Any:
    async def script(call: Call) -> None:
        await call.over()
        call.open()
        await call.send(*messages)
        call.end([("grpc-status", str(status))])

    return script


async def silent(call: Call) -> None:
    await call.when(lambda: call.is_over)


async def breaks_off(call: Call) -> None:
    call.reset(ErrorCodes.INTERNAL_ERROR)


async def lost(call: Call) -> None:
    call.peer.abort()


BY_GRPC = [
    (says(b"\x08\x01"), Readiness.READY),
    (says(b"\x08\x00"), Readiness.UNREADY),
    (says(b""), Readiness.UNREADY),
    (says(b"\x10\x01\x08\x01"), Readiness.READY),
    (says(status=14), Readiness.UNREADY),
    (says(status=12), Readiness.UNREADY),
    (says(b"\xff\xff"), Readiness.DOWN),
    (says(), Readiness.UNREADY),
    (silent, Readiness.DOWN),
    (breaks_off, Readiness.DOWN),
    (lost, Readiness.DOWN),
]


@pytest.mark.parametrize("script, found", BY_GRPC)
def test_by_grpc(script: Any, found: Readiness) -> None:
    """An endpoint with gRPC only is probed by ServerReady, over one connection."""

    async def whole() -> None:
        engine = await GrpcEngine(script).start()
        probe = EndpointProbe(spec(engine.url, is_silent=script is silent), engine.url)
        assert [await probe.check() for _ in range(2)] == [found, found]
        assert engine.calls[0].value(":path") == "/inference.GRPCInferenceService/ServerReady"
        assert engine.calls[0].value("authorization") == "Bearer secret"
        assert len(engine.peers) == (2 if script is lost else 1)
        await probe.close()
        await until(lambda: all(peer.is_lost for peer in engine.peers))
        await engine.stop()

    run(whole())


def test_by_grpc_nobody_there() -> None:
    async def whole() -> None:
        probe = EndpointProbe(spec("grpc://127.0.0.1:1"), "grpc://127.0.0.1:1")
        assert await probe.check() is Readiness.DOWN
        await probe.close()

    run(whole())


def test_an_endpoint_that_comes_back() -> None:
    """Each probe reports the current state."""

    async def whole() -> None:
        engine = await GrpcEngine(says(b"\x08\x01")).start()
        probe = EndpointProbe(spec(engine.url), engine.url)
        assert await probe.check() is Readiness.READY
        port = int(engine.address.rpartition(":")[2])
        await engine.stop()
        assert await probe.check() is Readiness.DOWN
        again = await GrpcEngine(says(b"\x08\x01")).start(port)
        assert await probe.check() is Readiness.READY
        await probe.close()
        await again.stop()

    run(whole())


def test_closing_in_the_middle() -> None:
    """A probe cancelled by new rules leaves no connection open."""

    async def whole() -> None:
        engine = await GrpcEngine(silent).start()
        probe = EndpointProbe(spec(engine.url), engine.url)
        checking = asyncio.create_task(probe.check())
        await until(lambda: engine.calls)
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        await probe.close()
        await until(lambda: engine.peers[0].is_lost)
        await engine.stop()

    run(whole())


async def closes(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.close()


async def never(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    await reader.read()


def replies(status: int) -> Any:
    async def script(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 %d Told\r\nContent-Length: 0\r\n\r\n" % status)

    return script


BY_REST = [
    (replies(200), Readiness.READY),
    (replies(400), Readiness.UNREADY),
    (replies(503), Readiness.UNREADY),
    (closes, Readiness.DOWN),
    (never, Readiness.DOWN),
]


def by_path(**statuses: int) -> Any:
    """Answers each path with its status, 404 by default: `v1_models=200`."""

    async def script(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        name = received.line.split()[1].strip("/").replace("/", "_")
        body = b'{"data": [{"id": "llama"}]}'
        head = b"HTTP/1.1 %d Told\r\nContent-Length: %d\r\n\r\n" % (statuses.get(name, 404), len(body))
        writer.write(head + body)

    return script


NO_LISTS = ModelsSpec("none")
OPENAI, TFSERVING, TORCHSERVE = EngineProtocol.OPENAI, EngineProtocol.TFSERVING, EngineProtocol.TORCHSERVE
BY_PROTOCOL = [
    (EngineProtocol.KSERVE, by_path(v2_health_ready=200), Readiness.READY, ["/v2/health/ready"]),
    (OPENAI, by_path(health=200), Readiness.READY, ["/health"]),
    (OPENAI, by_path(health=503, v1_models=200), Readiness.UNREADY, ["/health"]),  # llama.cpp while it loads
    (OPENAI, by_path(v1_models=200), Readiness.READY, ["/health", "/v1/models"]),  # Ollama
    (OPENAI, by_path(health=405, v1_models=200), Readiness.READY, ["/health", "/v1/models"]),
    (OPENAI, by_path(v1_models=401), Readiness.UNREADY, ["/health", "/v1/models"]),  # the key is wrong
    (OPENAI, by_path(), Readiness.UNREADY, ["/health", "/v1/models"]),
    (TFSERVING, by_path(), Readiness.READY, ["/v1/models/_"]),
    (TFSERVING, by_path(v1_models__=400), Readiness.READY, ["/v1/models/_"]),
    (TFSERVING, by_path(v1_models__=503), Readiness.UNREADY, ["/v1/models/_"]),
    (TORCHSERVE, by_path(ping=200), Readiness.READY, ["/ping"]),
    (TORCHSERVE, by_path(ping=500), Readiness.UNREADY, ["/ping"]),
]


@pytest.mark.parametrize("protocol, script, found, paths", BY_PROTOCOL)
def test_each_protocol_has_its_own_question(
    protocol: EngineProtocol, script: Any, found: Readiness, paths: list[str]
) -> None:
    """Without a path in the rules, an engine is probed at the paths of its protocol."""

    async def whole() -> None:
        engine = Engine(script)
        await engine.start()
        probe = EndpointProbe(spec(engine.url, protocol=protocol), engine.url)
        assert await probe.check() is found
        assert [received.line.split()[1] for received in engine.received] == paths
        await probe.close()
        engine.stop()

    run(whole())


def test_the_path_that_answers_is_remembered() -> None:
    """An engine without /health is probed at its model list from then on, until that fails too; a path that the rules
    name is the only one."""

    async def whole() -> None:
        engine = Engine(by_path(api_models=200))
        await engine.start()
        it = spec(engine.url, protocol=OPENAI, base_path="/api")
        probe = EndpointProbe(it, engine.url)

        async def asks() -> tuple[Readiness, list[str]]:
            engine.received.clear()
            return await probe.check(), [received.line.split()[1] for received in engine.received]

        assert await asks() == (Readiness.READY, ["/health", "/api/models"])
        assert await asks() == (Readiness.READY, ["/api/models"])
        engine.script = by_path(health=200)
        assert await asks() == (Readiness.READY, ["/api/models", "/health"])
        assert await asks() == (Readiness.READY, ["/health"])
        await probe.close()
        probe = EndpointProbe(replace(it, health=HealthSpec(path="/live")), engine.url)
        assert await asks() == (Readiness.UNREADY, ["/live"])
        await probe.close()
        engine.stop()

    run(whole())


def test_models_and_load_are_asked_for() -> None:
    """The models of an OpenAI engine, and its load where the rules enable it, are requested with the engine's key."""

    async def answer(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        bodies = {"/v1/models": b'{"data": [{"id": "llama"}]}', "/metrics": b"vllm:num_requests_running 3\n"}
        body = bodies[received.line.split()[1]]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def whole() -> None:
        engine = Engine(answer)
        await engine.start()
        probe = EndpointProbe(spec(engine.url, protocol=OPENAI, load=LoadSpec("metrics")), engine.url)
        assert (await probe.models() or AdvertisedModels()).names == {"llama"}
        assert await probe.load() == Load(3)
        assert {received.value("authorization") for received in engine.received} == {"Bearer secret"}
        await probe.close()
        silent = EndpointProbe(spec(engine.url, models=NO_LISTS), engine.url)
        assert (await silent.models(), await silent.load()) == (None, None)
        await silent.close()
        assert len(engine.received) == 2
        engine.stop()

    run(whole())


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_metrics_at_a_port_of_their_own(scheme: str) -> None:
    """Triton's metrics are at another port of the same host, for gRPC endpoints too."""

    async def answer(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        body = b'nv_inference_pending_request_count{model="m"} 4\n'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def whole() -> None:
        engine = Engine(answer)
        await engine.start()
        port = engine.url.rpartition(":")[2]
        url = f"{scheme}://127.0.0.1:1"
        probe = EndpointProbe(spec(url, load=LoadSpec("metrics", f":{port}/metrics?x=1"), models=NO_LISTS), url)
        assert await probe.load() == Load(0, 4)
        assert engine.received[0].line == "GET /metrics?x=1 HTTP/1.1"
        assert await probe.models() is None
        await probe.close()
        await until(lambda: engine.num_open == 0)
        engine.stop()

    run(whole())


@pytest.mark.parametrize("script, found", [(replies(404), None), (replies(200), None), (closes, None), (never, None)])
def test_what_does_not_tell(script: Any, found: None) -> None:
    """Models and load are None if they cannot be read, for any reason."""

    async def whole() -> None:
        engine = Engine(script)
        await engine.start()
        it = spec(engine.url, protocol=OPENAI, load=LoadSpec("metrics"), is_silent=script is never)
        probe = EndpointProbe(it, engine.url)
        try:
            assert await probe.models() == found
        except GatewayError:
            assert script in (closes, never)
        assert await probe.load() == found
        await probe.close()
        engine.stop()

    run(whole())


def test_a_list_that_is_too_long_is_unknown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A list of a million models stopped the control process for seconds, again and again: it is not read, which the
    log says once. By REST and gRPC."""
    monkeypatch.setattr(probe_module, "_MAX_BYTES", 1000)
    index = service_pb2.RepositoryIndexResponse()
    for number in range(100):
        index.models.add(name=f"model-{number}", version="2", state="READY")

    async def whole() -> None:
        rest = Engine(answers_with(200, b"[" + b'{"name":"m"},' * 100 + b"{}]"))
        await rest.start()
        by_grpc = await GrpcEngine(says(index.SerializeToString())).start()
        for it in (spec(rest.url), spec(rest.url, protocol=OPENAI), spec(by_grpc.url)):
            caplog.clear()
            probe = EndpointProbe(it, it.endpoints[0].url)
            assert [await probe.models(), await probe.models()] == [None, None]
            assert len(caplog.messages) == 1 and caplog.messages[0].endswith(
                ("more than 1000 bytes", "longer than 1000")
            ), caplog.messages
            await probe.close()
        rest.stop()
        await by_grpc.stop()

    run(whole())


def test_the_repository_index_over_rest_and_grpc() -> None:
    """V2's models with their versions, by the path or the RPC; an index that is restricted, or another shape, is
    none."""
    index = service_pb2.RepositoryIndexResponse()
    index.models.add(name="m", version="2", state="READY")
    index.models.add(name="other", version="1", state="UNAVAILABLE")

    async def whole() -> None:
        body = b'[{"name":"m","version":"2","state":"READY"},{"name":"other","version":"1","state":"UNAVAILABLE"}]'
        rest = Engine(answers_with(200, body))
        await rest.start()
        by_grpc = await GrpcEngine(says(index.SerializeToString())).start()
        for url in (rest.url, by_grpc.url):
            probe = EndpointProbe(spec(url), url)
            found = await probe.models()
            assert found is not None
            assert (found.names, found.versions) == ({"m"}, {"m": {"2"}})
            await probe.close()
        assert rest.received[0].line == "POST /v2/repository/index HTTP/1.1"
        restricted = await GrpcEngine(says(status=14)).start()
        for other in (answers_with(403, b"{}"), answers_with(200, b"[1, null]"), answers_with(404, b"")):
            rest.script = other
            probe = EndpointProbe(spec(rest.url), rest.url)
            assert await probe.models() is None
            await probe.close()
        probe = EndpointProbe(spec(restricted.url), restricted.url)
        assert await probe.models() is None
        await probe.close()
        rest.stop()
        await by_grpc.stop()
        await restricted.stop()

    run(whole())


def answers_with(status: int, body: bytes) -> Any:
    async def script(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    return script


OTHERS_BY_GRPC = [
    (TFSERVING, says(status=5), Readiness.READY),  # no such model: the server is up
    (TFSERVING, says(status=3), Readiness.READY),
    (TFSERVING, says(status=14), Readiness.UNREADY),
    (TFSERVING, lost, Readiness.DOWN),
    (TORCHSERVE, says(b'\n\x17{"status": "Healthy"}\n'), Readiness.READY),
    (TORCHSERVE, says(b'\n\x19{"status": "Unhealthy"}\n'), Readiness.UNREADY),
    (TORCHSERVE, says(status=12), Readiness.UNREADY),
]


@pytest.mark.parametrize("protocol, script, found", OTHERS_BY_GRPC)
def test_other_protocols_by_grpc(protocol: EngineProtocol, script: Any, found: Readiness) -> None:
    """TF Serving is ready if it answers for an unknown model; TorchServe reports its health."""

    async def whole() -> None:
        engine = await GrpcEngine(script).start()
        probe = EndpointProbe(spec(engine.url, protocol=protocol), engine.url)
        assert await probe.check() is found
        called = "/tensorflow.serving.ModelService/GetModelStatus"
        if protocol is TORCHSERVE:
            called = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping"
        assert engine.calls[0].value(":path") == called
        await probe.close()
        await engine.stop()

    run(whole())


@pytest.mark.parametrize("script, found", BY_REST)
def test_by_rest(script: Any, found: Readiness) -> None:
    """An endpoint with REST and gRPC is probed by REST."""

    async def whole() -> None:
        engine = Engine(script)
        await engine.start()
        probe = EndpointProbe(spec(engine.url, is_silent=script is never), engine.url)
        assert await probe.check() is found
        assert engine.received[0].line == "GET /v2/health/ready HTTP/1.1"
        assert engine.received[0].value("authorization") == "Bearer secret"
        await probe.close()
        engine.stop()

    run(whole())


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_torchserve_lists_models_at_its_management_port(scheme: str) -> None:
    """`models: {path: ":8081/models"}`; a list of several pages is none."""

    async def whole() -> None:
        found = {"models": [{"modelName": "noop", "modelUrl": "noop.mar"}, {"modelName": "other"}]}
        for listed, names in ((found, {"noop", "other"}), ({"nextPageToken": "2", **found}, None)):
            management = Engine(answers_with(200, orjson.dumps(listed)))
            await management.start()
            models = ModelsSpec(path=f":{management.url.rpartition(':')[2]}/models?limit=100")
            url = f"{scheme}://127.0.0.1:9"
            probe = EndpointProbe(spec(url, protocol=TORCHSERVE, models=models), url)
            known = await probe.models()
            assert (known.names if known is not None else None) == names
            assert management.received[0].line == "GET /models?limit=100 HTTP/1.1"
            await probe.close()
            management.stop()

    run(whole())


def test_a_list_that_stays_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long list is read beside other work, and only where it has changed."""
    reads = []

    def read(body: bytes) -> AdvertisedModels | None:
        reads.append((len(body), threading.current_thread() is threading.main_thread()))
        return read_model_list(body)

    monkeypatch.setattr(probe_module, "read_model_list", read)
    lists = [["llama"], ["llama"], [f"model-{number}" for number in range(9000)]]

    async def whole() -> None:
        async def script(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
            body = orjson.dumps({"data": [{"id": name} for name in lists[min(len(engine.received) - 1, 2)]]})
            writer.write(b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        engine = Engine(script)
        await engine.start()
        probe = EndpointProbe(spec(engine.url, protocol=EngineProtocol.OPENAI), engine.url)
        found = [await probe.models() for _ in range(5)]
        assert [len(each.names) if each is not None else 0 for each in found] == [1, 1, 9000, 9000, 9000]
        assert [is_main for _, is_main in reads] == [True, False]
        await probe.close()
        engine.stop()

    run(whole())
