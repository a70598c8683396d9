"""Real servers with different models behind one engine: probes find out which endpoint has which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as grpc_client

from tests.support import plain_http
from tests.support.canned_llm import CannedLLM
from tests.support.host import HostProcess
from tests.support.llm import start_canned
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

__all__ = ["start_canned"]  # a fixture

MODELS = Path(__file__).parents[1] / "models"
VECTOR = {"shape": [1, 3], "datatype": "INT32", "data": [1, 2, 3]}
ADD = {"inputs": [{"name": "a", **VECTOR}, {"name": "b", **VECTOR}]}
IDENTITY = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1.5]}]}


def served(gateway: GatewayProcess) -> list[list[str] | None]:
    """The models of each endpoint of the first engine, as the admin API shows them."""
    endpoints = plain_http.get(f"{gateway.admin_url}/engines").json()["engines"][0]["endpoints"]
    return [each["models"] if each["lists_models"] else None for each in endpoints]


def test_two_language_models_behind_one_engine(
    start_gateway: Callable[..., GatewayProcess], start_canned: Callable[..., CannedLLM]
) -> None:
    """Of 100 requests for the models of two servers none gets 404, and /v1/models has the models of both."""
    lists = ("llama,llama-lora", "qwen")
    urls = ", ".join(f"'{start_canned(extra_args=['--models', names]).http_url}'" for names in lists)
    health = "health: {interval: 100ms, timeout: 60s}"
    engine = f"{{endpoints: [{urls}], protocol: openai, {health}, models: {{remember: 0s}}}}"
    gateway = start_gateway(f"version: 1\nengines: {{it: {engine}}}\nroutes: [{{name: all, engine: it}}]\n", workers=2)
    assert eventually(lambda: served(gateway) == [["llama", "llama-lora"], ["qwen"]])
    statuses: Counter[int] = Counter()
    for number in range(100):
        model = ("llama", "qwen", "llama-lora")[number % 3]
        text = {"model": model, "messages": [{"role": "user", "content": "2"}], "max_tokens": 2}
        statuses[plain_http.post(f"{gateway.http_url}/v1/chat/completions", json=text).status_code] += 1
    assert statuses == {200: 100}
    cards = plain_http.get(f"{gateway.http_url}/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["llama", "llama-lora", "qwen"]
    assert {(card["max_model_len"], card["created"]) for card in cards} == {(4096, 1_700_000_000)}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[HostProcess]]:
    """Two engine hosts of one repository that have loaded different models."""
    started = [
        HostProcess.start(
            [MODELS],
            tmp_path_factory.mktemp("host"),
            extra_args=("--model-control-mode", "explicit", "--load-model", model),
        )
        for model in ("adder", "identity_fp32")
    ]
    yield [host.wait_ready() for host in started]
    for host in started:
        host.stop()


def infer(gateway: GatewayProcess, model: str, body: Any, times: int = 10) -> Counter[int]:
    url = f"{gateway.http_url}/v2/models/{model}/infer"
    return Counter(plain_http.post(url, json=body).status_code for _ in range(times))


def test_two_hosts_with_different_models(
    start_gateway: Callable[..., GatewayProcess], hosts: list[HostProcess]
) -> None:
    """REST, unary gRPC and a gRPC stream reach the host that has the model; a load and an unload through the gateway
    are known when their reply comes."""
    urls = ", ".join(f"{{url: '{host.http_url}', grpc: '127.0.0.1:{host.port('grpc')}'}}" for host in hosts)
    engine = f"{{endpoints: [{urls}], health: {{interval: 1h}}, models: {{remember: 0s}}}}"
    strict = f"{{endpoints: [{urls}], health: {{interval: 1h}}, models: {{unknown: refuse}}}}"
    routes = "[{name: strict, match: {model: 'identity_byte*'}, engine: strict}, {name: all, engine: it}]"
    gateway = start_gateway(
        f"version: 1\nengines: {{it: {engine}, strict: {strict}}}\nroutes: {routes}\n",
        workers=2,
        extra_args=["--allow-control", "all"],
    )
    assert eventually(lambda: served(gateway) == [["adder"], ["identity_fp32"]])
    assert infer(gateway, "adder", ADD) == infer(gateway, "identity_fp32", IDENTITY) == {200: 10}
    given = grpc_client.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
    with grpc_client.InferenceServerClient(f"127.0.0.1:{gateway.port('grpc')}") as client:
        for _ in range(10):
            assert client.infer("identity_fp32", [given]).as_numpy("OUTPUT0") == 1
        results: list[Any] = []
        client.start_stream(lambda result, error: results.append(error))
        for _ in range(10):
            client.async_stream_infer("identity_fp32", [given])
        client.stop_stream()
        assert results == [None] * 10
    load = f"{gateway.http_url}/v2/repository/models/repeater"
    assert plain_http.post(f"{load}/load").status_code == 200
    assert served(gateway) == [["adder", "repeater"], ["identity_fp32", "repeater"]]
    assert plain_http.post(f"{load}/unload").status_code == 200
    assert served(gateway) == [["adder"], ["identity_fp32"]]
    names = {"adder", "identity_fp32"}
    assert {card["id"] for card in plain_http.get(f"{gateway.http_url}/v1/models").json()["data"]} == names
    loaded = plain_http.post(f"{gateway.admin_url}/models/adder/load", json={"engine": "it"})
    assert loaded.status_code == 200
    assert served(gateway) == [["adder"], ["adder", "identity_fp32"]]
    # A model that is loaded past the gateway is refused where rules say so, until the refusal has had the lists read.
    repository = f"{hosts[1].http_url}/v2/repository/models/identity_bytes"
    url = f"{gateway.http_url}/v2/models/identity_bytes/infer"
    refused = plain_http.post(url, json={})
    assert (refused.status_code, refused.headers["x-pointsman-reason"]) == (404, "not_found")
    assert plain_http.post(f"{repository}/load").status_code == 200
    eventually(lambda: "Unable to parse" in plain_http.post(url, json={}).text)
    assert plain_http.post(f"{repository}/unload").status_code == 200
    unloaded = plain_http.post(f"{hosts[1].http_url}/v2/repository/models/adder/unload")
    assert unloaded.status_code == 200
