"""Pointsman's programs, started as on a Mac, answer real requests."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import psutil
import pytest

from engines.samples.repository import MODELS
from gateway.net.descriptors import raise_limit
from tests.engines.paged.front.llm_process import LLMProcess
from tests.support.child import REPOSITORY
from tests.support.host import HostProcess
from tests.support.servers import GatewayProcess
from tests.support.wire import send

pytestmark = pytest.mark.usefixtures("on_a_mac")

NUM_CONNECTIONS = 400
RULES = """
version: 1
engines: {{host: {{endpoints: ['{host}']}}}}
routes: [{{name: all, engine: host}}]
"""
INPUTS = [{"name": name, "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]} for name in "ab"]


@pytest.fixture
def host(on_a_mac: None, tmp_path: Path) -> Iterator[HostProcess]:
    """An engine host with a python model."""
    repository = tmp_path / "models"
    repository.mkdir()
    (repository / "adder").symlink_to(MODELS / "adder")
    running = HostProcess.start([repository], tmp_path / "host")
    yield running.wait_ready()
    running.stop()


@pytest.fixture
def gateway(host: HostProcess, start_gateway: Callable[..., GatewayProcess]) -> GatewayProcess:
    """A gateway of two workers, which share one listener."""
    return start_gateway(RULES.format(host=host.http_url), workers=2, redis="embedded")


def test_a_gateway_before_an_engine_host(gateway: GatewayProcess, host: HostProcess) -> None:
    """Small inferences and those that need shared memory succeed, and 400 concurrent clients are answered."""
    reply = send(gateway.http_port, "POST", "/v2/models/adder/infer", json.dumps({"inputs": INPUTS}).encode())
    assert [output["data"] for output in json.loads(reply.body)["outputs"]] == [[2, 4, 6], [0, 0, 0]]

    large = [{**each, "shape": [1, 300_000], "data": [7] * 300_000} for each in INPUTS]
    reply = send(gateway.http_port, "POST", "/v2/models/adder/infer", json.dumps({"inputs": large}).encode())
    assert json.loads(reply.body)["outputs"][0]["data"] == [14] * 300_000

    head = f"POST /v2/models/adder/infer HTTP/1.1\r\nhost: it\r\ncontent-length: {len(body())}\r\n\r\n".encode()
    raise_limit()  # for this test, which holds the other end of each connection
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.http_port), timeout=120))
            for _ in range(NUM_CONNECTIONS)
        ]
        for client in clients:
            client.sendall(head + body())
        assert {client.recv(12) for client in clients} == {b"HTTP/1.1 200"}
    workers = [each for each in psutil.Process(gateway.process.pid).children() if "gateway.worker" in each.cmdline()]
    assert len(workers) == 2
    assert "Traceback" not in host.log()


def body() -> bytes:
    return json.dumps({"inputs": INPUTS}).encode()


def test_a_client_s_shared_memory_that_is_created_again(host: HostProcess) -> None:
    """A region that is created again with the same name and size is mapped again: the model reads its new content."""
    name, size = f"pointsman-{os.getpid()}", 12
    sums = []
    for value in (1, 5):
        region = SharedMemory(name, create=True, size=size)
        try:
            np.ndarray((3,), np.int32, region.buf)[:] = value
            path = "/v2/systemsharedmemory/region/region"
            report = {"key": f"/{name}", "offset": 0, "byte_size": size}
            assert send(host.http_port, "POST", f"{path}/register", json.dumps(report).encode()).status == 200
            place = {"shared_memory_region": "region", "shared_memory_byte_size": size}
            inputs = [{**INPUTS[0], "parameters": place}, INPUTS[1]]
            del inputs[0]["data"]
            reply = send(host.http_port, "POST", "/v2/models/adder/infer", json.dumps({"inputs": inputs}).encode())
            sums.append(json.loads(reply.body)["outputs"][0]["data"])
            assert send(host.http_port, "POST", f"{path}/unregister").status == 200
        finally:
            region.close()
            region.unlink()
    assert sums == [[2, 3, 4], [6, 7, 8]]


@pytest.mark.skipif(not (find_spec("torch") and find_spec("tokenizers")), reason="the extra llm is not installed")
def test_a_language_model(on_a_mac: None, tmp_path: Path) -> None:
    """`pointsman llm` loads without a compiler, answers a chat, and stops."""
    model = MODELS / "storyteller" / "1"
    server = LLMProcess.start(model, tmp_path).wait_ready()
    requested = {
        "model": "1",
        "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
        "max_tokens": 40,
    }
    reply = server.post("/v1/chat/completions", requested)
    assert reply.status == 200, reply.body
    assert "fox" in json.loads(reply.body)["choices"][0]["message"]["content"]
    server.stop()


@pytest.mark.timeout(420)  # it starts a fleet, a gateway and a Redis, which a busy machine needs minutes for
def test_the_demo(on_a_mac: None) -> None:
    """`pointsman up --once` starts the fleet of samples and the gateway, and shows real replies."""
    command = [sys.executable, "-m", "gateway", "up", "--once", "--http-port", "0", "--grpc-port", "0"]
    demo = subprocess.Popen(
        [*command, "--admin-port", "0"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        shown, _ = demo.communicate(timeout=360)
    except subprocess.TimeoutExpired:
        demo.terminate()  # stops the processes that it has started
        shown, _ = demo.communicate(timeout=120)
        raise AssertionError(shown) from None
    assert demo.returncode == 0, shown
    assert re.search(r"infer adder .*\n  sum = \[11 22 33\]", shown), shown
    assert "'ONE URL FOR EVERY ENGINE'" in shown
    if find_spec("onnxruntime"):
        assert re.search(r"infer shapes .*\n  ring \d+\.\d, ", shown)
    if find_spec("torch") and find_spec("tokenizers"):
        assert "chat with storyteller" in shown and "The name of the fox was" in shown
