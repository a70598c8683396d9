"""What Triton restricts stays restricted through the gateway, by protocol, and opens to clients with the key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway.demo.triton import TritonProcess
from tests.conftest import TEST_MODELS, everything_to
from tests.support.servers import GatewayProcess

pytestmark = pytest.mark.triton

RESTRICTED = "metadata,model-repository,statistics,trace,logging,shared-memory,model-config"
REST_KEY, RPC_KEY = {"rest-key": "open"}, {"triton-grpc-protocol-rpc-key": "open"}
NO_KEY: dict[str, str] = {}
WRONG_KEY = {"rest-key": "shut", "triton-grpc-protocol-rpc-key": "shut"}

# Methods that the clients of both protocols have.
OPERATIONS: dict[str, Callable[[Any, dict[str, str]], Any]] = {
    "index": lambda client, key: client.get_model_repository_index(headers=key),
    "load": lambda client, key: client.load_model("adder", headers=key),
    "load a model that is not there": lambda client, key: client.load_model("nobody", headers=key),
    "statistics": lambda client, key: client.get_inference_statistics("nobody", headers=key),
    "read trace settings": lambda client, key: client.get_trace_settings(headers=key),
    "write log settings": lambda client, key: client.update_log_settings({"log_verbose_level": 0}, headers=key),
    "shared memory": lambda client, key: client.get_system_shared_memory_status(headers=key),
    "register": lambda client, key: client.register_system_shared_memory("r", "/missing", 8, headers=key),
    "metadata": lambda client, key: client.get_model_metadata("adder", headers=key),
    "configuration": lambda client, key: client.get_model_config("adder", headers=key),
}


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    options = [
        f"--http-restricted-api={RESTRICTED}:rest-key=open",
        f"--grpc-restricted-protocol={RESTRICTED}:rpc-key=open",
    ]
    with TritonProcess.start(
        TEST_MODELS,
        extra_args=["--model-control-mode=explicit", "--load-model=adder", *options],
        log_path=tmp_path_factory.mktemp("restricted") / "triton.log",
    ) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def guarded(restricted: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    server = GatewayProcess.start(everything_to(restricted), tmp_path_factory.mktemp("guarded"))
    yield server.wait_ready()
    server.stop()


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        return ("done", str(call()))
    except InferenceServerException as error:
        return ("refused", error.status(), error.message())


@pytest.mark.parametrize("key", [NO_KEY, WRONG_KEY, REST_KEY, RPC_KEY], ids=["none", "wrong", "rest", "rpc"])
def test_rest(restricted: TritonProcess, guarded: GatewayProcess, key: dict[str, str]) -> None:
    """REST clients need the key of REST, which the gateway passes on."""
    direct = http_client.InferenceServerClient(restricted.http_url.removeprefix("http://"))
    proxied = http_client.InferenceServerClient(f"127.0.0.1:{guarded.http_port}")
    for name, operation in OPERATIONS.items():
        expected = outcome(lambda operation=operation: operation(direct, key))
        assert outcome(lambda operation=operation: operation(proxied, key)) == expected, name
        assert ("403" in str(expected[1])) == (key is not REST_KEY), name
    direct.close()
    proxied.close()


@pytest.mark.parametrize("key", [NO_KEY, WRONG_KEY, REST_KEY, RPC_KEY], ids=["none", "wrong", "rest", "rpc"])
def test_grpc(restricted: TritonProcess, guarded: GatewayProcess, key: dict[str, str]) -> None:
    """gRPC clients need the key of gRPC, also where the engine has REST."""
    with (
        grpc_client.InferenceServerClient(restricted.grpc_url) as direct,
        grpc_client.InferenceServerClient(guarded.grpc_url) as proxied,
    ):
        for name, operation in OPERATIONS.items():
            expected = outcome(lambda operation=operation: operation(direct, key))
            assert outcome(lambda operation=operation: operation(proxied, key)) == expected, name
            assert ("restricted" in str(expected)) == (key is not RPC_KEY), name


def test_metadata_of_the_server(guarded: GatewayProcess) -> None:
    """The gateway's own name is open to all, whatever its engines restrict."""
    with grpc_client.InferenceServerClient(guarded.grpc_url) as rpc:
        assert rpc.get_server_metadata().name == "triton"
    rest = http_client.InferenceServerClient(f"127.0.0.1:{guarded.http_port}")
    assert rest.get_server_metadata()["name"] == "triton"
    rest.close()


def test_regions_without_a_name(triton: TritonProcess, gateway: GatewayProcess) -> None:
    """Shared memory that cannot be: clients of gRPC get the engine's own status."""
    replies = []
    for address in (triton.grpc_url, gateway.grpc_url):
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for call, request in [
                (stub.SystemSharedMemoryRegister, service_pb2.SystemSharedMemoryRegisterRequest()),
                (
                    stub.SystemSharedMemoryRegister,
                    service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/missing"),
                ),
                (stub.SystemSharedMemoryUnregister, service_pb2.SystemSharedMemoryUnregisterRequest(name="missing")),
                (stub.CudaSharedMemoryRegister, service_pb2.CudaSharedMemoryRegisterRequest()),
                (stub.SystemSharedMemoryStatus, service_pb2.SystemSharedMemoryStatusRequest(name="missing")),
            ]:
                try:
                    replies.append(str(call(request)))
                except grpc.RpcError as error:
                    replies.append((error.code(), error.details()))
    assert replies[:5] == replies[5:]
