"""Our engines on a real Ray of two nodes, behind the gateway: a first replica on request, more of them under load,
fewer afterwards, and a node that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc

from tests.support.ray_cluster import RayCluster
from tests.support.servers import GatewayProcess
from tests.support.tiny_llm import write_hugging_face
from tests.support.waiting import eventually

pytest.importorskip("ray")

MODELS = Path(__file__).parents[2] / "models"
# Under Ray's target of two for each replica: two replicas.
HELD = 4
RULES = """\
version: 1
engines:
  models:
    endpoints: [{{http: "{ray}/models/endpoints", grpc: listed, interval: 200ms, timeout: 60s, empty_grace: 0s}}]
    wait_for_endpoint: 5m
    activator: {{url: "{ray}/models/wake", timeout: 60s}}
    health: {{interval: 200ms, timeout: 60s}}
    retry: {{idempotent: infer}}
    timeout: 5m
  llm:
    protocol: openai
    endpoints: [{{http: "{ray}/llm/endpoints", interval: 200ms, timeout: 60s}}]
    wait_for_endpoint: 5m
    health: {{interval: 200ms, timeout: 60s}}
    timeout: 5m
routes:
  - {{name: llm, match: {{model: counter}}, engine: llm}}
  - {{name: models, engine: models}}
"""
# A model that answers once the file exists that a request names.
WAITER = {
    "config.pbtxt": """\
backend: "python"
max_batch_size: 0
input [ { name: "file", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "file", data_type: TYPE_STRING, dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU, count: 1 } ]
""",
    "1/model.py": """\
import pathlib
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            file = pb_utils.get_input_tensor_by_name(request, "file").as_numpy()
            while not pathlib.Path(file[0].decode()).exists():
                time.sleep(0.02)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("file", file)]))
        return responses
""",
}


class Stage:
    """The cluster, and the gateway before it."""

    def __init__(self, ray: RayCluster, gateway: GatewayProcess, directory: Path) -> None:
        self.ray, self.gateway, self._directory = ray, gateway, directory
        self.client = httpx.Client(timeout=280.0)

    def listed(self) -> list[str]:
        """The replicas that the application lists; none while it does not answer."""
        reply = self.client.get(f"{self.ray.http_url}/models/endpoints")
        return [each["url"] for each in reply.json()] if reply.status_code == 200 else []

    def ready(self) -> set[str]:
        """The endpoints that the gateway uses."""
        engines = self.client.get(f"{self.gateway.admin_url}/engines").json()["engines"]
        (found,) = [each for each in engines if each["name"] == "models"]
        usable = [each for each in found["endpoints"] if each["condition"] == "ready" and each["draining"] is None]
        return {each["url"] for each in usable}

    @contextmanager
    def holding(self, name: str, *urls: str) -> Iterator[list[Future[httpx.Response]]]:
        """A request for the model `waiter` to each of these, in flight until the context ends."""
        gate = self._directory / name
        with ThreadPoolExecutor(len(urls)) as threads:
            held = [threads.submit(self.infer, url, "waiter", file=[str(gate)]) for url in urls]
            try:
                yield held
            finally:
                gate.touch()

    def infer(self, url: str, model: str, **values: list[Any]) -> httpx.Response:
        """Texts have one dimension, numbers a batch of one."""
        inputs = []
        for name, data in values.items():
            shape, datatype = ([len(data)], "BYTES") if isinstance(data[0], str) else ([1, len(data)], "INT32")
            inputs.append({"name": name, "shape": shape, "datatype": datatype, "data": data})
        return self.client.post(f"{url}/v2/models/{model}/infer", json={"inputs": inputs})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("ray")
    repository = directory / "models"
    copytree(MODELS / "adder", repository / "adder")
    for name, text in WAITER.items():
        (repository / "waiter" / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / "waiter" / name).write_text(text)
    model = write_hugging_face(directory / "counter")
    with ExitStack() as stack:
        ray = RayCluster.start(repository, model, directory / "cluster")
        stack.callback(ray.kill)
        ray.wait_ready()
        gateway = GatewayProcess.start(RULES.format(ray=ray.http_url), directory / "gateway")
        stack.callback(gateway.kill)
        gateway.wait_ready()
        yield Stage(ray, gateway, directory)
        gateway.stop()
        ray.stop()


def test_requests_reach_replicas_that_the_gateway_finds(stage: Stage) -> None:
    """A first request starts a replica and waits for it; REST, gRPC and a chat are served by replicas directly."""
    assert stage.listed() == []
    reply = stage.infer(stage.gateway.http_url, "adder", a=[1, 2], b=[3, 4])
    assert reply.status_code == 200, reply.text
    assert reply.json()["outputs"][0]["data"] == [4, 6]
    assert len(stage.listed()) == 1
    client = tritonclient.grpc.InferenceServerClient(stage.gateway.grpc_url)
    inputs = []
    for name in ("a", "b"):
        inputs.append(tritonclient.grpc.InferInput(name, [1, 2], "INT32"))
        inputs[-1].set_data_from_numpy(np.array([[1, 2]], np.int32))
    assert client.infer("adder", inputs).as_numpy("sum").tolist() == [[2, 4]]
    client.close()
    question = {"model": "counter", "messages": [{"role": "user", "content": "count"}], "max_tokens": 4}
    chat = stage.client.post(f"{stage.gateway.http_url}/v1/chat/completions", json=question)
    assert chat.status_code == 200, chat.text
    assert chat.json()["usage"]["completion_tokens"] == 4


def test_replicas_follow_the_load_and_drain(stage: Stage) -> None:
    """Requests in flight start a second replica, which the gateway finds. With fewer of them one replica leaves the
    list, and finishes what it has before it ends."""
    with stage.holding("more", *[stage.gateway.http_url] * HELD) as held:
        eventually(lambda: len(stage.ready()) == 2)
    assert [each.result().status_code for each in held] == [200] * HELD
    urls = stage.listed()
    assert len(urls) == 2
    with stage.holding("fewer", *urls) as held:  # one each: a single replica may have both
        eventually(lambda: len(stage.listed()) == 1)
        eventually(lambda: stage.ready() == set(stage.listed()))
        assert not any(each.done() for each in held)
    assert [each.result().status_code for each in held] == [200, 200]
    (gone,) = set(urls) - set(stage.listed())
    eventually(lambda: _is_gone(stage, gone))


def test_a_killed_node_fails_no_request(stage: Stage) -> None:
    """A node is killed while requests wait at its replica and others come: all are answered by the other replica, and
    the endpoint leaves."""
    failures: list[str] = []
    stopping = threading.Event()

    def send() -> None:
        while not stopping.wait(0.01):
            reply = stage.infer(stage.gateway.http_url, "adder", a=[1], b=[2])
            if reply.status_code != 200:
                failures.append(f"{reply.status_code} {reply.text}")

    with stage.holding("killed", *[stage.gateway.http_url] * HELD) as held:
        eventually(lambda: len(stage.ready()) == 2)
        before = stage.ready()
        clients = [threading.Thread(target=send) for _ in range(2)]
        for client in clients:
            client.start()
        try:
            stage.ray.kill_node()
            eventually(lambda: len(stage.listed()) == 1)
            eventually(lambda: stage.ready() == set(stage.listed()))
            assert stage.ready() < before
        finally:
            stopping.set()
            for client in clients:
                client.join()
    assert [each.result().status_code for each in held] == [200] * HELD
    assert failures == []


def _is_gone(stage: Stage, url: str) -> bool:
    try:
        stage.client.get(f"{url}/v2/health/live")
    except httpx.ConnectError:
        return True
    return False
