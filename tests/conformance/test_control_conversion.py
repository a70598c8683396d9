"""A control call that is converted to the other protocol gets the same reply from Triton as in its own.

Each call goes to Triton four ways: as gRPC, as REST, as gRPC turned into REST and the reply back, and the reverse.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.demo.triton import TritonProcess
from gateway.protocol.conversion.control import rest_request, rest_response, rpc_request, rpc_response
from gateway.protocol.conversion.control_errors import RpcError, rest_error
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.protobuf import message, parse
from gateway.protocol.translator import Reply
from tests.conformance.requests import ADDER, ADDER_JSON
from tests.support.waiting import eventually
from tests.support.wire import send

pytestmark = pytest.mark.triton

Rpc = Callable[[str, bytes], bytes]

UNKNOWN_MODEL = {"name": "nope"}
UNKNOWN_VERSION = {"name": "adder", "version": "9"}

# Calls that change nothing, and calls that fail.
READS: list[tuple[str, dict[str, Any]]] = [
    ("ServerLive", {}),
    ("ServerReady", {}),
    ("ServerMetadata", {}),
    *(
        (rpc, fields)
        for rpc in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
        for fields in ({"name": "adder"}, {"name": "adder", "version": "1"}, UNKNOWN_MODEL, UNKNOWN_VERSION)
    ),
    *(("ModelConfig", {"name": name}) for name in ("accumulator", "classifier", "repeater", "identity_bytes")),
    ("ModelStatistics", {}),
    ("ModelStatistics", {"name": "repeater"}),
    ("RepositoryIndex", {}),
    ("RepositoryIndex", {"ready": True}),
    ("SystemSharedMemoryStatus", {}),
    ("SystemSharedMemoryStatus", {"name": "nope"}),
    ("CudaSharedMemoryStatus", {}),
    ("CudaSharedMemoryStatus", {"name": "nope"}),
    ("TraceSetting", {}),
    ("TraceSetting", {"model_name": "adder"}),
    ("TraceSetting", {"model_name": "nope"}),
    ("LogSettings", {}),
]


@pytest.fixture(scope="module")
def rpc(triton: TritonProcess) -> Iterator[Rpc]:
    """Triton's gRPC: a serialised request in, a serialised response or an RpcError out."""
    with grpc.insecure_channel(triton.grpc_url) as channel:

        def call(name: str, request: bytes) -> bytes:
            try:
                return channel.unary_unary(RPCS[name].path)(request, timeout=120)
            except grpc.RpcError as error:
                raise RpcError(error.code().value[0], error.details()) from None

        yield call


@pytest.fixture(scope="module")
def rest(triton: TritonProcess) -> Callable[[str, str, bytes], Reply]:
    def call(method: str, target: str, body: bytes = b"") -> Reply:
        reply = send(triton.http_port, method, target, body)
        return Reply(reply.status, reply.body)

    return call


@pytest.fixture(scope="module")
def rpc_over_rest(rest: Callable[..., Reply]) -> Rpc:
    """The same as `rpc`, through Triton's REST."""

    def call(name: str, request: bytes) -> bytes:
        requested = rest_request(name, request)
        reply = rest(requested.method, requested.target, requested.body.data)
        return rpc_response(name, reply.status, reply.body)

    return call


@pytest.fixture(scope="module")
def rest_over_rpc(rpc: Rpc) -> Callable[..., Reply]:
    """The same as `rest`, through Triton's gRPC."""

    def call(method: str, target: str, body: bytes = b"") -> Reply:
        name, request = rpc_request(method, target, body)
        try:
            return rest_response(name, rpc(name, request))
        except RpcError as error:
            return rest_error(error.code, error.message)

    return call


@pytest.fixture(scope="module", autouse=True)
def some_inferences(rest: Callable[..., Reply]) -> None:
    """Run inferences for the statistics, including a decoupled model's responses."""
    assert rest("POST", ADDER, ADDER_JSON).status == 200
    assert rest("POST", "/v2/models/repeater/generate_stream", b'{"text_input":"x","count":2}').status == 200


def serialised(name: str, fields: dict[str, Any]) -> bytes:
    return message(f"inference.{name}Request")(**fields).SerializeToString()


def outcome(call: Rpc, name: str, request: bytes) -> Any:
    """The response message, or the code and the text of the failure."""
    try:
        return parse(f"inference.{name}Response", call(name, request))
    except RpcError as error:
        return error.code, error.message


def adder_is(state: str, rpc: Rpc) -> bool:
    index = parse("inference.RepositoryIndexResponse", rpc("RepositoryIndex", b""))
    return any(model.name == "adder" and model.state == state for model in index.models)


def told(reply: Reply) -> Any:
    return reply.status, json.loads(reply.body) if reply.body else None


@pytest.mark.parametrize(("name", "fields"), READS, ids=lambda value: str(value))
def test_reads_by_grpc(name: str, fields: dict[str, Any], rpc: Rpc, rpc_over_rest: Rpc) -> None:
    """A gRPC client gets the same message, or the same failure, from Triton's REST as from its gRPC."""
    request = serialised(name, fields)
    assert outcome(rpc_over_rest, name, request) == outcome(rpc, name, request)


@pytest.mark.parametrize(("name", "fields"), READS, ids=lambda value: str(value))
def test_reads_by_rest(name: str, fields: dict[str, Any], rest: Any, rest_over_rpc: Any) -> None:
    """A REST client gets the same JSON, or the same failure, from Triton's gRPC as from its REST."""
    requested = rest_request(name, serialised(name, fields))
    direct, converted = (
        told(call(requested.method, requested.target, requested.body.data)) for call in (rest, rest_over_rpc)
    )
    assert converted == direct


LOAD, UNLOAD = "/v2/repository/models/adder/load", "/v2/repository/models/adder/unload"

# Every 64-bit number of a configuration that Triton writes as a JSON number, and one that it writes as a string.
RICH_CONFIG = {
    "name": "adder",
    "backend": "python",
    "max_batch_size": 8,
    "version_policy": {"specific": {"versions": [1]}},
    "input": [{"name": name, "data_type": "TYPE_INT32", "dims": [1], "reshape": {"shape": []}} for name in "ab"],
    "output": [{"name": name, "data_type": "TYPE_INT32", "dims": [-1]} for name in ("sum", "diff")],
    "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    "parameters": {"threshold": {"string_value": "0.5"}},
    "metric_tags": {"team": "signals"},
    "dynamic_batching": {
        "preferred_batch_size": [4, 8],
        "max_queue_delay_microseconds": 5_000_000_000,
        "priority_levels": 2,
        "default_priority_level": 1,
        "default_queue_policy": {"default_timeout_microseconds": 7, "max_queue_size": 9},
        "priority_queue_policy": {"2": {"timeout_action": "DELAY", "default_timeout_microseconds": 8}},
    },
    "model_warmup": [],
}
STATEFUL_CONFIG = {
    **{key: value for key, value in RICH_CONFIG.items() if key != "dynamic_batching"},
    "sequence_batching": {
        "direct": {"minimum_slot_utilization": 0.1, "max_queue_delay_microseconds": 6},
        "control_input": [
            {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]}
        ],
        "state": [
            {
                "input_name": "before",
                "output_name": "after",
                "data_type": "TYPE_INT32",
                "dims": [1],
                "initial_state": [{"name": "zero", "data_type": "TYPE_INT32", "dims": [1], "zero_data": True}],
            }
        ],
    },
}


@pytest.fixture
def adder_loaded_again(rest: Callable[..., Reply], rpc: Rpc) -> Iterator[None]:
    """Restore the adder: a load without a configuration may keep the one of an earlier load."""
    yield
    assert rest("POST", UNLOAD, b"{}").status == 200
    eventually(lambda: adder_is("UNAVAILABLE", rpc))
    assert rest("POST", LOAD, b"{}").status == 200
    assert json.loads(rest("GET", "/v2/models/adder/config").body)["input"][0]["dims"] == [-1]


@pytest.mark.usefixtures("adder_loaded_again")
def test_load_and_unload(rpc: Rpc, rest: Any, rpc_over_rest: Rpc, rest_over_rpc: Any) -> None:
    """Models are loaded and unloaded by either protocol, with a configuration and files in the request."""
    unload = serialised("RepositoryModelUnload", {"model_name": "adder"})
    assert rpc_over_rest("RepositoryModelUnload", unload) == b""
    eventually(lambda: adder_is("UNAVAILABLE", rpc))
    index = serialised("RepositoryIndex", {})
    assert outcome(rpc_over_rest, "RepositoryIndex", index) == outcome(rpc, "RepositoryIndex", index)
    requested = "POST", "/v2/repository/index", b"{}"
    assert told(rest_over_rpc(*requested)) == told(rest(*requested))
    model = Path(__file__).parents[1].joinpath("models/adder/1/model.py").read_bytes()
    config = json.dumps(RICH_CONFIG)
    parameters = {"config": {"string_param": config}, "file:1/model.py": {"bytes_param": model}}
    load = serialised("RepositoryModelLoad", {"model_name": "adder", "parameters": parameters})
    assert rpc_over_rest("RepositoryModelLoad", load) == b""
    assert adder_is("READY", rpc)
    assert rest_over_rpc("POST", UNLOAD, b'{"parameters":{"unload_dependents":true}}') == Reply(200, b"")
    eventually(lambda: adder_is("UNAVAILABLE", rpc))
    body = {"parameters": {"config": config, "file:1/model.py": b64encode(model).decode()}}
    assert rest_over_rpc("POST", LOAD, json.dumps(body).encode()) == Reply(200, b"")
    assert adder_is("READY", rpc)


@pytest.mark.usefixtures("adder_loaded_again")
@pytest.mark.parametrize("config", [RICH_CONFIG, STATEFUL_CONFIG], ids=["dynamic batching", "sequences with a state"])
def test_numbers_of_a_configuration(
    config: dict[str, Any], rpc: Rpc, rest: Any, rpc_over_rest: Rpc, rest_over_rpc: Any
) -> None:
    """A configuration is the same in both protocols, whether Triton writes its 64-bit numbers as numbers or as
    strings."""
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    assert rest("POST", LOAD, body) == Reply(200, b"")
    path = "/v2/models/adder/config"
    assert told(rest_over_rpc("GET", path)) == told(rest("GET", path))
    request = serialised("ModelConfig", {"name": "adder"})
    assert outcome(rpc_over_rest, "ModelConfig", request) == outcome(rpc, "ModelConfig", request)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("RepositoryModelLoad", {"model_name": "nope"}),
    ("RepositoryModelLoad", {"model_name": "adder", "repository_name": "other"}),
    ("RepositoryModelLoad", {"model_name": "adder", "parameters": {"config": {"string_param": "{"}}}),
    ("SystemSharedMemoryRegister", {"name": "r", "key": "pointsman_no_such_key", "byte_size": 8}),
    ("CudaSharedMemoryRegister", {"name": "r", "raw_handle": b"x" * 64, "byte_size": 8}),
    ("TraceSetting", {"settings": {"trace_file": {"value": ["/tmp/trace"]}}}),
    ("TraceSetting", {"settings": {"trace_rate": {"value": ["often"]}}}),
    ("LogSettings", {"settings": {"log_file": {"string_param": "/tmp/log"}}}),
]


@pytest.mark.parametrize(("name", "fields"), REFUSED, ids=lambda value: str(value))
def test_refusals(name: str, fields: dict[str, Any], rpc: Rpc, rpc_over_rest: Rpc) -> None:
    """A call that Triton refuses over gRPC is refused alike over REST."""
    request = serialised(name, fields)
    assert outcome(rpc_over_rest, name, request) == outcome(rpc, name, request)


def test_trace_settings(rpc: Rpc, rest: Any, rpc_over_rest: Rpc, rest_over_rpc: Any) -> None:
    """A setting is set and cleared by either protocol, for one model and for all."""
    requested = serialised("TraceSetting", {"model_name": "adder"})
    before = outcome(rpc, "TraceSetting", requested)
    path = "/v2/models/adder/trace/setting"
    setting = {"trace_rate": {"value": ["77"]}, "trace_level": {"value": ["OFF"]}}
    set_by_rpc = outcome(
        rpc_over_rest, "TraceSetting", serialised("TraceSetting", {"model_name": "adder", "settings": setting})
    )
    assert list(set_by_rpc.settings["trace_rate"].value) == ["77"]
    assert set_by_rpc == outcome(rpc, "TraceSetting", requested)
    cleared = told(rest_over_rpc("POST", path, b'{"trace_rate":null,"trace_level":null}'))
    assert cleared == told(rest("GET", path))
    set_by_rest = told(rest_over_rpc("POST", path, b'{"trace_rate":"78","trace_level":["OFF"]}'))
    assert set_by_rest[1]["trace_rate"] == "78"
    assert set_by_rest == told(rest("GET", path))
    clearing = serialised("TraceSetting", {"model_name": "adder", "settings": {"trace_rate": {}, "trace_level": {}}})
    assert outcome(rpc_over_rest, "TraceSetting", clearing) == before


def test_log_settings(rpc: Rpc, rest: Any, rpc_over_rest: Rpc, rest_over_rpc: Any) -> None:
    """Log settings are set by either protocol, and put back."""
    before = outcome(rpc, "LogSettings", b"")
    format_before = before.settings["log_format"].string_param
    setting = serialised("LogSettings", {"settings": {"log_format": {"string_param": "ISO8601"}}})
    try:
        done = outcome(rpc_over_rest, "LogSettings", setting)
        assert done.settings["log_format"].string_param == "ISO8601"
        assert done == outcome(rpc, "LogSettings", b"")
    finally:
        body = json.dumps({"log_format": format_before, "log_warning": True, "log_error": None}).encode()
        put_back = told(rest_over_rpc("POST", "/v2/logging", body))
    assert put_back == told(rest("GET", "/v2/logging"))
    assert outcome(rpc, "LogSettings", b"") == before


def test_shared_memory(rpc: Rpc, rest: Any, rpc_over_rest: Rpc, rest_over_rpc: Any) -> None:
    """A region is registered, listed and unregistered by either protocol."""
    region = SharedMemory(name="pointsman_control_test", create=True, size=4096)
    try:
        register = serialised("SystemSharedMemoryRegister", {"name": "r", "key": region.name, "byte_size": 64})
        assert rpc_over_rest("SystemSharedMemoryRegister", register) == b""
        status = serialised("SystemSharedMemoryStatus", {"name": "r"})
        assert outcome(rpc_over_rest, "SystemSharedMemoryStatus", status) == outcome(
            rpc, "SystemSharedMemoryStatus", status
        )
        path = "/v2/systemsharedmemory/region/r"
        assert told(rest_over_rpc("GET", f"{path}/status")) == told(rest("GET", f"{path}/status"))
        assert rest_over_rpc("POST", f"{path}/unregister") == Reply(200, b"")
        assert rest("GET", "/v2/systemsharedmemory/status").body == b"[]"
        body = json.dumps({"key": region.name, "offset": 0, "byte_size": 32}).encode()
        assert rest_over_rpc("POST", f"{path}/register", body) == Reply(200, b"")
        assert rpc_over_rest("SystemSharedMemoryUnregister", b"") == b""
        assert rest("GET", "/v2/systemsharedmemory/status").body == b"[]"
    finally:
        rest("POST", "/v2/systemsharedmemory/unregister")
        region.close()
        region.unlink()
