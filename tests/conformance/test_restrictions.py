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


OPTIONS = [
    f"--http-restricted-api={RESTRICTED}:rest-key=open",
    f"--grpc-restricted-protocol={RESTRICTED}:rpc-key=open",
]


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    with TritonProcess.start(
        TEST_MODELS,
        extra_args=["--model-control-mode=explicit", "--load-model=adder", *OPTIONS],
        log_path=tmp_path_factory.mktemp("restricted") / "triton.log",
    ) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def guarded(restricted: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    options = ["--allow-control", "all"]
    server = GatewayProcess.start(everything_to(restricted), tmp_path_factory.mktemp("guarded"), extra_args=options)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def guarding(triton: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that restricts what `restricted` does, before a Triton that restricts nothing."""
    server = GatewayProcess.start(everything_to(triton), tmp_path_factory.mktemp("guarding"), extra_args=OPTIONS)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def closed(triton: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with default options."""
    server = GatewayProcess.start(everything_to(triton), tmp_path_factory.mktemp("closed"))
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


@pytest.mark.parametrize("key", [NO_KEY, WRONG_KEY, REST_KEY, RPC_KEY], ids=["none", "wrong", "rest", "rpc"])
@pytest.mark.parametrize("front", ["rest", "grpc"])
def test_the_gateways_own_restrictions(
    restricted: TritonProcess, guarding: GatewayProcess, front: str, key: dict[str, str]
) -> None:
    """The gateway's options refuse as Triton's do, with the same statuses and texts; the key opens what changes an
    engine, too."""
    refused = 0
    with client_of(front, restricted) as direct, client_of(front, guarding) as own:
        for name, operation in OPERATIONS.items():
            expected = outcome(lambda operation=operation: operation(direct, key))
            answer = outcome(lambda operation=operation: operation(own, key))
            if "restricted" in str(expected):
                assert answer == expected, name
                refused += 1
            else:
                assert answer[0] == expected[0] and "restricted" not in str(answer), name
        assert refused == (0 if key is (REST_KEY if front == "rest" else RPC_KEY) else len(OPERATIONS))
        assert own.is_server_live()


CHANGING: dict[str, Callable[[Any], Any]] = {
    "load": lambda client: client.load_model("adder"),
    "unload": lambda client: client.unload_model("adder"),
    "logging": lambda client: client.update_log_settings({"log_verbose_level": 0}),
    "trace": lambda client: client.update_trace_settings(settings={"trace_rate": "1000"}),
    "trace of a model": lambda client: client.update_trace_settings("adder", {"trace_rate": "1000"}),
}


@pytest.mark.parametrize("front", ["rest", "grpc"])
def test_changing_an_engine_is_refused_by_default(triton: TritonProcess, closed: GatewayProcess, front: str) -> None:
    """Without an option, no client of the inference ports may change an engine; all may read."""
    with client_of(front, closed) as client:
        for name, change in CHANGING.items():
            option = f"--allow-control {name.partition(' ')[0]} "
            kind, status, text = outcome(lambda change=change: change(client))
            assert (kind, status) == ("refused", "403" if front == "rest" else "StatusCode.PERMISSION_DENIED"), name
            assert option in text and "admin API" in text
        assert client.get_log_settings() and client.get_trace_settings() and client.get_trace_settings("adder")
        assert client.get_model_repository_index() and client.get_inference_statistics()
        assert client.is_model_ready("adder")
    with http_client.InferenceServerClient(triton.http_url.removeprefix("http://")) as direct:
        assert direct.is_model_ready("adder")


def test_operations_are_allowed_one_by_one(triton: TritonProcess, start_gateway: Callable[..., GatewayProcess]) -> None:
    """--allow-control opens what it names, to every client."""
    server = start_gateway(everything_to(triton), extra_args=["--allow-control", "load,logging"])
    for front in ("rest", "grpc"):
        with client_of(front, server) as client:
            allowed = {name for name, change in CHANGING.items() if outcome(lambda c=change: c(client))[0] == "done"}
            assert allowed == {"load", "logging"}


def client_of(front: str, server: TritonProcess | GatewayProcess) -> Any:
    if front == "grpc":
        return grpc_client.InferenceServerClient(server.grpc_url)
    return http_client.InferenceServerClient(f"127.0.0.1:{server.http_port}")
