"""Endpoints of one engine that serve different models: requests reach one that has theirs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.dataplane.attempts.model_refusal import lacks_model
from gateway.dataplane.context.data_plane import DataPlane
from gateway.protocol.advertised_models import AdvertisedModels, read_index, read_model_list
from gateway.protocol.engine_load import Readiness
from tests.dataplane.grpc.peers import STREAM, UNARY, Call, GrpcEngine
from tests.dataplane.grpc.stage import answers, grpc_rules, grpc_stage, many, request, response
from tests.dataplane.stage import Engine, ReceivedRequest, get, post, rules, run, stage
from tests.protocol.tfserving.exchanges import HALF_PLUS_TWO, STATUS

CHAT = "/v1/chat/completions"
UNKNOWN_TO_TRITON = "Request for unknown model: '%s' is not found"


class ModelServer(Engine):
    """Serves some models of OpenAI's API and of V2, and refuses others as vLLM and Triton do; `in_pieces`: the head of
    a refusal comes before its body, as uvicorn sends it."""

    def __init__(self, *models: str, in_pieces: bool = False) -> None:
        super().__init__(self.play)
        self.models = models
        self.in_pieces = in_pieces

    async def play(
        self, engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = received.line.split()[1]
        is_v2 = path.startswith("/v2/models/")
        model = path.split("/")[3] if is_v2 else json.loads(received.body)["model"]
        if model in self.models:
            status, reply = "200 OK", json.dumps({"model": model, "served_by": self.url})
        elif is_v2:
            status, reply = "400 Bad Request", json.dumps({"error": UNKNOWN_TO_TRITON % model})
        else:
            text = f"The model `{model}` does not exist."
            status = "404 Not Found"
            reply = json.dumps({"error": {"message": text, "type": "NotFoundError", "param": "model", "code": 404}})
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(reply)}\r\n\r\n".encode()
        writer.write(head)
        if self.in_pieces:
            await writer.drain()
            await asyncio.sleep(0.01)  # what comes later comes in another read, whenever that is
        writer.write(reply.encode())


def chat(model: str, path: str = CHAT, **more: Any) -> bytes:
    return post(path, json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], **more}).encode())


def use_lists(plane: DataPlane, **lists: AdvertisedModels | None) -> None:
    """Give the endpoints of engine `it` their lists as the probes would; `e0` is the first one's."""
    endpoints = plane.snapshot.engines["it"].endpoints
    plane.update_health({}, {("it", endpoints[int(name[1:])].url): listed for name, listed in lists.items()})


def listing(*names: str) -> AdvertisedModels | None:
    return read_model_list(json.dumps({"data": [{"id": name} for name in names]}).encode())


def index(*names: str) -> AdvertisedModels | None:
    entries = [dict(zip(("name", "version"), each.partition("@")[::2], strict=True)) for each in names]
    return read_index(json.dumps([{**entry, "state": "READY"} for entry in entries]).encode())


@pytest.mark.parametrize(
    "balance", ["power_of_two", "round_robin", "least_outstanding", "latency", "session", "prefix"]
)
def test_each_model_goes_where_it_is_served(tmp_path: Path, balance: str) -> None:
    """Of two vLLM servers with other models and LoRA adapters, none gets a request of the other: no 404 of 100."""

    async def scene() -> None:
        first, second = ModelServer("llama", "llama-lora"), ModelServer("qwen")
        await first.start()
        await second.start()
        options = f"protocol: openai\n    balance: {balance}\n    health: {{interval: 0}}"
        async with stage(rules(first, second, options=options), tmp_path) as it:
            use_lists(it.plane, e0=listing("llama", "llama-lora"), e1=listing("qwen"))
            client = await it.client()
            for number in range(100):
                model = ("llama", "qwen", "llama-lora")[number % 3]
                reply = await client.ask(chat(model))
                assert (reply.status, json.loads(reply.body)["model"]) == (200, model)
            assert (len(first.received), len(second.received)) == (67, 33)
        first.stop()
        second.stop()

    run(scene())


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("request_of", [chat, lambda model: post(f"/v2/models/{model}/infer")])
def test_a_refused_model_is_tried_elsewhere_and_remembered(tmp_path: Path, in_pieces: bool, request_of: Any) -> None:
    """Endpoints without lists: the first that refuses a model is left for the other, at once and for the next time."""

    async def scene() -> None:
        has_it, lacks_it = ModelServer("a"), ModelServer("b", in_pieces=in_pieces)
        await has_it.start()
        await lacks_it.start()
        protocol = "openai" if request_of is chat else "kserve"
        options = (
            f"protocol: {protocol}\n    balance: round_robin\n    health: {{interval: 0}}\n    models: {{remember: 1h}}"
        )
        async with stage(rules(lacks_it, has_it, options=options), tmp_path) as it:
            for _ in range(6):
                assert (await it.ask(request_of("a"))).status == 200
            assert (len(has_it.received), len(lacks_it.received)) == (6, 1)
            reply = await it.ask(request_of("nobody's"))  # the last one's refusal is the client's answer
            assert reply.status in (400, 404)
            assert b"nobody's" in reply.body
            assert (len(has_it.received), len(lacks_it.received)) == (7, 2)
            assert it.errors() == {}
            assert sum(series.retries for series in it.plane.metrics.by_key.values()) == 2
        has_it.stop()
        lacks_it.stop()

    run(scene())


def test_learning_can_be_switched_off(tmp_path: Path) -> None:
    """`remember: 0s` relays each refusal."""

    async def scene() -> None:
        has_it, lacks_it = ModelServer("a"), ModelServer("b")
        await has_it.start()
        await lacks_it.start()
        options = "protocol: openai\n    balance: round_robin\n    health: {interval: 0}\n    models: {remember: 0s}"
        async with stage(rules(lacks_it, has_it, options=options), tmp_path) as it:
            assert sorted([(await it.ask(chat("a"))).status for _ in range(4)]) == [200, 200, 404, 404]
        has_it.stop()
        lacks_it.stop()

    run(scene())


def test_other_refusals_go_to_the_client(tmp_path: Path) -> None:
    """A 400 that merely repeats what a client wrote, and a 404 without a model, are neither retried nor learned."""

    async def scene() -> None:
        bodies = [
            b'{"error":"no: Request for unknown model"}',
            b'{"detail":"Not Found"}',
            b"unknown model" + b"x" * 20_000,
        ]

        async def refuse(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
            body, status = bodies.pop(0), b"404 Not Found" if len(bodies) < 2 else b"400 Bad Request"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

        one, other = Engine(refuse), Engine(refuse)
        await one.start()
        await other.start()
        options = "protocol: openai\n    health: {interval: 0}"
        async with stage(rules(one, other, options=options), tmp_path) as it:
            assert [(await it.ask(chat("a"))).status for _ in range(3)] == [400, 404, 404]
            assert it.plane.snapshot.engines["it"].by_model is None
        assert len(one.received) + len(other.received) == 3
        one.stop()
        other.stop()

    run(scene())


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}', True),  # vLLM
        ('{"object": "error", "message": "The model `x` does not exist.", "code": 404}', True),  # vLLM before 0.9
        ('{"error":{"message":"No.","code":"model_not_found"}}', True),  # OpenAI
        ('{"error":"model \'x\' not found"}', True),  # Ollama
        ('{"error":"Model x with version 3 not found"}', True),  # MLServer
        ('{"error": "Model with name x does not exist."}', True),  # KServe
        ('{ "error": "Servable not found for request: Specific(x, 3)" }', True),  # TF Serving
        ('{"error": "Could not find any versions of model x"}', True),  # TF Serving, of a model's state
        ('{"error": "Could not find version 3 of model x"}', True),
        ('{"code": 404, "type": "ModelNotFoundException", "message": "Model not found: x"}', True),  # TorchServe
        ("Request for unknown model: 'x' is not found", True),  # Triton, gRPC
        ("Model with requested name is not found", True),  # OVMS
        # vLLM, with an id that the client invented
        ('{"error":{"message":"Response with id \'resp_ model x not found\' not found.","code":404}}', False),
        ('{"error":"no such thing: \\"message\\": \\"model x not found\\""}', False),
        ('{"error":{"message":"The file is missing","code":"file_not_found"}}', False),
        ("no such thing: unknown model", False),
    ],
)
def test_refusals_that_are_about_the_model(text: str, expected: bool) -> None:
    """What engines say of a model; what a client says in their words turns no other's requests away."""
    assert lacks_model(404, text.encode()) is expected


def test_a_translated_request_goes_where_its_model_is(tmp_path: Path) -> None:
    """Anthropic's API for engines of OpenAI's, under a route that renames the model: the engine's name decides."""

    async def scene() -> None:
        first, second = ModelServer("llama"), ModelServer("qwen")
        await first.start()
        await second.start()
        routes = "  - {name: all, match: {model: claude}, engine: it, model: qwen}\n"
        options = "protocol: openai\n    health: {interval: 0}"
        async with stage(rules(first, second, options=options, routes=routes), tmp_path) as it:
            use_lists(it.plane, e0=listing("llama", "claude"), e1=listing("qwen"))
            for _ in range(10):
                await it.ask(chat("claude", "/v1/messages", max_tokens=3))
            assert (len(first.received), len(second.received)) == (0, 10)
        first.stop()
        second.stop()

    run(scene())


def test_a_session_stays_with_each_model(tmp_path: Path) -> None:
    """A sticky session that uses models of different endpoints has an endpoint for each, and moves for none."""

    async def scene() -> None:
        servers = [
            ModelServer("a", "both"),
            ModelServer("a", "both"),
            ModelServer("b", "both"),
            ModelServer("b", "both"),
        ]
        for server in servers:
            await server.start()
        options = "protocol: openai\n    balance: session\n    health: {interval: 0}"
        async with stage(rules(*servers, options=options), tmp_path) as it:
            use_lists(it.plane, **{f"e{number}": listing(*server.models) for number, server in enumerate(servers)})
            for session in range(8):
                places: dict[str, set[str]] = {}
                for model in ("a", "b", "both") * 3:
                    text = json.dumps({"model": model, "messages": []}).encode()
                    reply = await it.ask(post(CHAT, text, f"x-session-id: s{session}"))
                    places.setdefault(model, set()).add(json.loads(reply.body)["served_by"])
                assert [len(at) for at in places.values()] == [1, 1, 1]
            assert not it.plane.affinity.book.counts.moved
        for server in servers:
            server.stop()

    run(scene())


def test_a_version_goes_where_it_is_ready(tmp_path: Path) -> None:
    """V2 over REST: the repository index names versions; a request for one goes to an endpoint that has it."""

    async def scene() -> None:
        first, second = ModelServer("m"), ModelServer("m")
        await first.start()
        await second.start()
        async with stage(rules(first, second, options="health: {interval: 0}"), tmp_path) as it:
            use_lists(it.plane, e0=index("m@1"), e1=index("m@2"))
            for _ in range(10):
                assert (await it.ask(post("/v2/models/m/versions/2/infer"))).status == 200
            assert (len(first.received), len(second.received)) == (0, 10)
        first.stop()
        second.stop()

    run(scene())


REFUSES = {  # what servers without lists of models say, and the path of an inference
    "tfserving": ("/v1/models/{}:predict", '{{"error": "Servable not found for request: Latest({})"}}'),
    "torchserve": (
        "/predictions/{}",
        '{{"code": 404, "type": "ModelNotFoundException", "message": "Model not found: {}"}}',
    ),
}


@pytest.mark.parametrize("protocol", REFUSES)
def test_servers_without_lists(tmp_path: Path, protocol: str) -> None:
    """TF Serving and TorchServe: a translated inference that one refuses is retried at another one, once, and so is a
    question for the model's state; the refusal is remembered."""
    path, refusal = REFUSES[protocol]

    async def serve(engine: Engine, received: ReceivedRequest, reader: Any, writer: asyncio.StreamWriter) -> None:
        line = received.line.split()[1]
        if engine is engines[0]:
            status, body = b"404 Not Found", refusal.format("m")
            if protocol == "tfserving" and received.line.startswith("GET"):
                body = '{"error": "Could not find any versions of model m"}'
        elif received.line.startswith("GET") and line.endswith("/metadata"):
            status, body = b"200 OK", HALF_PLUS_TWO.decode()
        elif received.line.startswith(("GET", "OPTIONS")):
            status, body = b"200 OK", STATUS.decode()
        else:
            assert line == path.format("m")
            status, body = b"200 OK", json.dumps({"outputs": [1.0]} if protocol == "tfserving" else [1.0])
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (status, len(body)) + body.encode())

    engines = [Engine(serve), Engine(serve)]
    tensor = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}

    async def scene() -> None:
        for engine in engines:
            await engine.start()
        options = (
            f"protocol: {protocol}\n    balance: round_robin\n    health: {{interval: 0}}\n    models: {{remember: 1h}}"
        )
        async with stage(rules(*engines, options=options), tmp_path) as it:
            for _ in range(4):
                reply = await it.ask(post("/v2/models/m/infer", json.dumps(tensor).encode()))
                assert reply.status == 200, reply.body
            assert 1 <= len(engines[0].received) <= 2  # TF Serving has two questions at once
        async with stage(rules(*engines, options=options), tmp_path) as it:
            for _ in range(4):
                assert (await it.ask(get("/v2/models/m/ready"))).status == 200
        assert len(engines[0].received) <= 4
        for engine in engines:
            engine.stop()

    run(scene())


class GrpcModels:
    """The script of a Triton with some models, over gRPC."""

    def __init__(self, *models: str) -> None:
        self.models = models
        self.num_served = 0

    async def __call__(self, call: Call) -> None:
        is_stream = call.value(":path") == STREAM
        if not is_stream and call.value(":path") != UNARY:
            call.refuse(12, "no such method")
            return
        has_begun = False
        while (message := await call.message()) is not None:
            read = service_pb2.ModelInferRequest.FromString(message)
            if read.model_name not in self.models:
                call.refuse(5, UNKNOWN_TO_TRITON % read.model_name)
                return
            self.num_served += 1
            if not has_begun:
                call.open()
                has_begun = True
            await call.send(response(read.model_name, read.id) if is_stream else request(read.model_name))
        call.end()


def test_calls_and_streams_go_where_their_models_are(tmp_path: Path) -> None:
    """Unary calls, and the messages of one stream, whose models are at different endpoints of one engine."""

    async def scene() -> None:
        scripts = GrpcModels("a", "both"), GrpcModels("b", "both")
        engines = [await GrpcEngine(script).start() for script in scripts]
        async with grpc_stage(grpc_rules(*engines), tmp_path) as it:
            use_lists(it.plane, e0=index("a@1", "both@1"), e1=index("b@1", "both@1"))
            client = await it.grpc()
            for model in ("a", "b", "both") * 5:
                assert (await client.ask(request(model))).status == 0
            messages = [request(model, f"{model}{number}") for number in range(5) for model in ("a", "b")]
            call = await client.ask(*messages, path=STREAM)
            assert call.status == 0
            assert sorted(answers(call.messages)) == sorted(f"{m}{n}" for n in range(5) for m in ("a", "b"))
            assert sum(script.num_served for script in scripts) == 25
        for engine in engines:
            await engine.stop()

    run(scene())


def test_a_refused_call_is_tried_elsewhere(tmp_path: Path) -> None:
    """Over gRPC, an endpoint that answers NOT_FOUND is left for the other, and the model's next calls avoid it."""

    async def scene() -> None:
        has_it, lacks_it = GrpcModels("a"), GrpcModels("b")
        engines = [await GrpcEngine(script).start() for script in (lacks_it, has_it)]
        options = "balance: round_robin\n    models: {remember: 1h}"
        async with grpc_stage(grpc_rules(*engines, options=options), tmp_path) as it:
            client = await it.grpc()
            assert [(await client.ask(request("a"))).status for _ in range(5)] == [0] * 5
            assert [len(engine.calls) for engine in engines] == [1, 5]
            assert (await client.ask(request("c"))).status == 5
        for engine in engines:
            await engine.stop()

    run(scene())


def test_a_stream_goes_to_the_fallback_where_no_endpoint_of_its_model_is_up(tmp_path: Path) -> None:
    """An endpoint that is up with other models does not keep a stream from its fallback."""

    async def scene() -> None:
        scripts = GrpcModels("a"), GrpcModels("b"), GrpcModels("a", "b")
        engines = [await GrpcEngine(script).start() for script in scripts]
        routes = "  - {name: all, engine: it, fallback: [spare]}\n"
        text = many({"it": tuple(engines[:2]), "spare": engines[2]}, routes)
        async with grpc_stage(text, tmp_path) as it:
            use_lists(it.plane, e0=index("a@1"), e1=index("b@1"))
            it.plane.snapshot.engines["it"].endpoints[0].condition = Readiness.DOWN
            client = await it.grpc()
            for model, number in (("a", 2), ("b", 1)):
                call = await client.ask(request(model, model), path=STREAM)
                assert (call.status, answers(call.messages)) == (0, [model])
                assert (await client.ask(request(model))).status == 0
                assert scripts[number].num_served == 2
        for engine in engines:
            await engine.stop()

    run(scene())
