"""Regions of shared memory belong to the client that has registered them, before a real Triton."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import shared_memory

from gateway.demo.triton import TritonProcess
from tests.conformance.region_codes import without_codes
from tests.conformance.test_restrictions import client_of, outcome
from tests.support import plain_http
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually, released

pytestmark = pytest.mark.triton

NUMBERS = np.array([[1, 2, 3]], dtype=np.int32)
SIZE = NUMBERS.nbytes
FRONTS = ("rest", "grpc")
MODULES: dict[str, Any] = {"rest": http_client, "grpc": grpc_client}
# Clients by address; Linux has all of 127.0.0.0/8, and --trust-forwarded takes a proxy's word for others.
ALICE, MALLORY = "127.0.0.1", "203.0.113.7"


def rules(triton: TritonProcess) -> str:
    return f"""
version: 1
engines: {{triton: {{endpoints: [{{url: "{triton.http_url}", grpc: "{triton.grpc_url}"}}]}}}}
routes: [{{name: all, engine: triton}}]
"""


@pytest.fixture(scope="module")
def shared(triton: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of two workers behind a trusted proxy, so that one host can be many."""
    options = ["--trust-forwarded", "--allow-control", "shared-memory"]
    folder = tmp_path_factory.mktemp("shared")
    server = GatewayProcess.start(rules(triton), folder, workers=2, extra_args=options)
    yield server.wait_ready()
    server.stop()


@pytest.fixture
def region() -> Iterator[Any]:
    handle = shared_memory.create_shared_memory_region("mine", "/pointsman_owned", 3 * SIZE)
    shared_memory.set_shared_memory_region(handle, [NUMBERS, NUMBERS * 10])
    yield handle
    shared_memory.destroy_shared_memory_region(handle)


def infer(client: Any, front: str, headers: dict[str, str], name: str = "mine") -> Any:
    module = MODULES[front]
    inputs = [module.InferInput(each, [1, 3], "INT32") for each in "ab"]
    for number, each in enumerate(inputs):
        each.set_shared_memory(name, SIZE, offset=number * SIZE)
    wanted = module.InferRequestedOutput("sum")
    wanted.set_shared_memory(name, SIZE, offset=2 * SIZE)
    return client.infer("adder", inputs, outputs=[wanted], headers=headers)


def names(client: Any, headers: dict[str, str]) -> list[str]:
    status = client.get_system_shared_memory_status(headers=headers)
    return sorted(status.regions if hasattr(status, "regions") else [each["name"] for each in status])


@pytest.mark.parametrize("front", FRONTS)
def test_a_region_belongs_to_its_client(triton: TritonProcess, shared: GatewayProcess, region: Any, front: str) -> None:
    """Nobody else reads its status, uses it in an inference, replaces it, registers its object or unregisters it;
    REST and gRPC alike, and on whichever worker a connection is."""
    mine, hers = {"x-forwarded-for": ALICE}, {"x-forwarded-for": MALLORY}
    with contextlib.ExitStack() as stack:
        clients = {each: stack.enter_context(client_of(each, shared)) for each in FRONTS}
        client = clients[front]
        direct = stack.enter_context(client_of(front, triton))
        client.register_system_shared_memory("mine", "/pointsman_owned", 3 * SIZE, headers=mine)
        for each, other in clients.items():
            assert names(other, hers) == [] and names(other, mine) == ["mine"]
            unknown = outcome(lambda: direct.get_system_shared_memory_status("mine"))
            if each == front:
                assert outcome(lambda o=other: o.get_system_shared_memory_status("mine", headers=hers)) == unknown
                missing = outcome(lambda each=each: infer(direct, each, {}))
                attempt = outcome(lambda o=other, each=each: infer(o, each, hers))
                assert (*attempt[:2], without_codes(str(attempt[2]).encode()).decode()) == missing
            taken = outcome(lambda o=other: o.register_system_shared_memory("x", "pointsman_owned", SIZE, headers=hers))
            assert taken[0] == "refused" and "registered by another client" in taken[2]
            nul = outcome(
                lambda o=other: o.register_system_shared_memory("x", "/pointsman_owned\0x", SIZE, headers=hers)
            )
            assert nul[0] == "refused" and "NUL" in nul[2]
            assert other.unregister_system_shared_memory("mine", headers=hers) is None
            assert other.unregister_system_shared_memory(headers=hers) is None
            infer(other, each, mine)
            total = shared_memory.get_contents_as_numpy(region, np.int32, [1, 3], offset=2 * SIZE)
            assert total.tolist() == [[11, 22, 33]]
        # The same name is hers, too
        own = shared_memory.create_shared_memory_region("mine", "/pointsman_hers", 3 * SIZE)
        try:
            client.register_system_shared_memory("mine", "/pointsman_hers", 3 * SIZE, headers=hers)
            shared_memory.set_shared_memory_region(own, [NUMBERS, NUMBERS])
            infer(client, front, hers)
            total = shared_memory.get_contents_as_numpy(own, np.int32, [1, 3], offset=2 * SIZE)
            assert total.tolist() == [[2, 4, 6]]
            eventually(lambda: released(lambda: client.unregister_system_shared_memory(headers=hers)))
        finally:
            shared_memory.destroy_shared_memory_region(own)
        assert names(client, mine) == ["mine"] and names(client, hers) == []
        eventually(lambda: released(lambda: client.unregister_system_shared_memory(headers=mine)))
        assert names(client, mine) == [] and names(direct, {}) == []


# After what is a whole registration of /pointsman_owned for Triton.
SPELLINGS = {
    "NaN": (b', "x": NaN}', 403),
    "no UTF-8": (b', "x": "\xff"}', 400),
    "NUL": (b"}\0", 400),
    "deep": (b', "x": %b%b}' % (b"[" * 1100, b"]" * 1100), 400),
    "doubled": (b', "key": "/pointsman_hers"}', 400),
}


def test_no_spelling_registers_the_object_of_another(
    triton: TritonProcess, shared: GatewayProcess, region: Any
) -> None:
    """Triton takes bodies that are no JSON, and of a key that comes twice the first; the gateway refuses these."""
    mine, hers = {"x-forwarded-for": ALICE}, {"x-forwarded-for": MALLORY}
    path = "/v2/systemsharedmemory/region/spelled/register"
    text = b'{"key": "//pointsman_owned", "offset": 0, "byte_size": %d' % SIZE
    with client_of("rest", shared) as client:
        client.register_system_shared_memory("mine", "/pointsman_owned", 3 * SIZE, headers=mine)
        for name, (end, status) in SPELLINGS.items():
            assert plain_http.post(triton.http_url + path, content=text + end).status_code == 200, name
            plain_http.post(triton.http_url + path.replace("/register", "/unregister")).raise_for_status()
            reply = plain_http.post(f"http://127.0.0.1:{shared.port('http')}{path}", content=text + end, headers=hers)
            assert (name, reply.status_code) == (name, status)
        eventually(lambda: released(lambda: client.unregister_system_shared_memory(headers=mine)))


def test_streams_use_regions(shared: GatewayProcess, region: Any) -> None:
    """Regions work in the messages of a gRPC stream."""
    mine = {"x-forwarded-for": ALICE}
    with client_of("grpc", shared) as client:
        client.register_system_shared_memory("mine", "/pointsman_owned", 3 * SIZE, headers=mine)
        replies: list[Any] = []
        done = threading.Event()

        def take(result: Any, error: Any) -> None:
            replies.append(error or result)
            done.set()

        client.start_stream(take, headers=mine)
        inputs = [grpc_client.InferInput(each, [1, 3], "INT32") for each in "ab"]
        for number, each in enumerate(inputs):
            each.set_shared_memory("mine", SIZE, offset=number * SIZE)
        client.async_stream_infer("adder", inputs)
        assert done.wait(120)
        assert replies[0].as_numpy("sum").tolist() == [[11, 22, 33]]
        client.stop_stream()
        eventually(lambda: released(lambda: client.unregister_system_shared_memory(headers=mine)))


def test_the_owner_is_known_to_the_next_gateway(
    triton: TritonProcess, region: Any, start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """A gateway that starts on the data folder of another knows whose the engines' regions are."""
    first = start_gateway(rules(triton), data_dir=tmp_path / "state")
    with client_of("rest", first) as client:
        client.register_system_shared_memory("mine", "/pointsman_owned", 3 * SIZE)
    second = start_gateway(rules(triton), data_dir=tmp_path / "state")
    assert (tmp_path / "state" / "shared_memory_secret").stat().st_mode & 0o777 == 0o600
    with client_of("rest", second) as client:
        assert names(client, {}) == ["mine"]
        infer(client, "rest", {})
        eventually(lambda: released(client.unregister_system_shared_memory))


@pytest.mark.parametrize("front", FRONTS)
def test_other_hosts_register_nothing_by_default(
    triton: TritonProcess, start_gateway: Callable[..., GatewayProcess], front: str
) -> None:
    """A client of another host cannot name this host's memory, unless an option permits it."""
    server = start_gateway(rules(triton), extra_args=["--trust-forwarded"])
    with client_of(front, server) as client:
        far = {"x-forwarded-for": f"{ALICE}, {MALLORY}"}
        kind, status, text = outcome(
            lambda: client.register_system_shared_memory("r", "/pointsman_far", 8, headers=far)
        )
        assert (kind, status) == ("refused", "403" if front == "rest" else "StatusCode.PERMISSION_DENIED")
        assert MALLORY in text and "--allow-control shared-memory" in text
        near = outcome(lambda: client.register_system_shared_memory("r", "/pointsman_far", 8))
        assert "Unable to open shared memory region" in near[2]
