"""Conversion of control requests and replies between gRPC and REST."""

import json
from typing import Any

import pytest

from gateway.protocol.conversion.control import rest_request, rest_response, rpc_request, rpc_response
from gateway.protocol.conversion.control_table import CONTROLS
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.operations import Operation, read_path
from gateway.protocol.protobuf import message, parse
from gateway.protocol.translator import RestBody, RestRequest
from tests.protocol.conversion.control_cases import REPLIES, REQUESTS, Fields, body, request, response


def test_every_control_rpc_has_an_entry() -> None:
    """Every Triton RPC except the two inference RPCs is a control RPC, and both tables in this module cover each
    one."""
    assert CONTROLS.keys() == RPCS.keys() - {"ModelInfer", "ModelStreamInfer"}
    assert CONTROLS.keys() == {rpc for rpc, *_ in REQUESTS}
    assert CONTROLS.keys() == {rpc for rpc, *_ in REPLIES} | {"ModelConfig"}


@pytest.mark.parametrize(("rpc", "fields", "method", "target", "json_body"), REQUESTS)
def test_requests(rpc: str, fields: Fields, method: str, target: str, json_body: Any) -> None:
    """Equivalent gRPC and REST requests convert into each other byte for byte."""
    sent = RestRequest(method, target, RestBody(body(json_body).replace(b"\\u00fc", "ü".encode())))
    assert rest_request(rpc, request(rpc, **fields)) == sent
    assert rpc_request(method, target, sent.body.data) == (rpc, request(rpc, **fields))


# REST routing treats a model's trace settings and the statistics of all models as separate operations.
SPECIAL_OPERATIONS = {Operation.MODEL_TRACE: Operation.TRACE, Operation.SERVER_STATS: Operation.MODEL_STATS}


@pytest.mark.parametrize(("rpc", "method", "target"), [(rpc, method, target) for rpc, _, method, target, _ in REQUESTS])
def test_requests_are_routed_alike(rpc: str, method: str, target: str) -> None:
    """A REST path maps to the same operation as the RPC that it converts to."""
    call = read_path(target)
    assert call is not None
    assert SPECIAL_OPERATIONS.get(call.operation, call.operation) is RPCS[rpc].operation
    assert method in call.verbs


@pytest.mark.parametrize(("rpc", "fields", "status", "json_body"), REPLIES)
def test_replies(rpc: str, fields: Fields, status: int, json_body: Any) -> None:
    """Equivalent gRPC and REST replies convert into each other."""
    reply = rest_response(rpc, response(rpc, **fields))
    assert (reply.status, json.loads(reply.body) if reply.body else None) == (status, json_body)
    assert rpc_response(rpc, status, body(json_body)) == response(rpc, **fields)


def test_settings_keep_triton_s_order() -> None:
    """Settings are written in Triton's order, whatever the map's order; unknown settings come last."""
    names = ["zone", "trace_mode", "trace_rate", "area", "trace_level"]
    reply = rest_response("TraceSetting", response("TraceSetting", settings={name: {"value": ["1"]} for name in names}))
    assert list(json.loads(reply.body)) == ["trace_level", "trace_rate", "trace_mode", "area", "zone"]


CONFIG = {
    "name": "m",
    "backend": "python",
    "max_batch_size": 8,
    "version_policy": {"specific": {"versions": [1, 2]}},
    "input": [{"name": "a", "data_type": "TYPE_INT32", "dims": [-1, 4]}],
    "dynamic_batching": {
        "max_queue_delay_microseconds": 5_000_000_000,
        "priority_queue_policy": {"2": {"timeout_action": "DELAY", "default_timeout_microseconds": 8}},
    },
    "instance_group": [{"kind": "KIND_GPU", "count": 2, "gpus": [0]}],
    "parameters": {"x": {"string_value": "y"}},
}


def test_configuration() -> None:
    """A model configuration is written as Triton writes it: 64-bit integers are JSON numbers, and defaults are
    included."""
    data = rpc_response("ModelConfig", 200, body(CONFIG))
    config = parse("inference.ModelConfigResponse", data).config
    assert config.dynamic_batching.priority_queue_policy[2].default_timeout_microseconds == 8
    assert list(config.input[0].dims) == [-1, 4]
    written = json.loads(rest_response("ModelConfig", data).body)
    assert written["dynamic_batching"]["max_queue_delay_microseconds"] == 5_000_000_000
    assert written["dynamic_batching"]["priority_queue_policy"]["2"]["timeout_action"] == "DELAY"
    assert written["version_policy"] == {"specific": {"versions": [1, 2]}}
    assert written["input"][0] | {"dims": [-1, 4], "format": "FORMAT_NONE", "optional": False} == written["input"][0]
    assert (written["platform"], written["output"]) == ("", [])
    assert rpc_response("ModelConfig", 200, body(written)) == data


@pytest.mark.parametrize("path", ["initial_state", "secondary_devices"])
def test_numbers_that_triton_tells_as_texts(path: str) -> None:
    """Triton writes three 64-bit fields of a configuration as JSON strings, and so does the conversion."""
    configs = {
        "initial_state": {
            "sequence_batching": {"state": [{"dims": [3], "initial_state": [{"dims": [5], "zero_data": True}]}]}
        },
        "secondary_devices": {"instance_group": [{"secondary_devices": [{"device_id": 5}]}]},
    }
    data = rpc_response("ModelConfig", 200, body(configs[path]))
    written = rest_response("ModelConfig", data).body
    assert b'"5"' in written
    assert b'"3"' not in written
    assert rpc_response("ModelConfig", 200, written) == data


@pytest.mark.parametrize(
    ("rpc", "reply", "fields"),
    [
        ("ModelConfig", {"name": "m", "of_tomorrow": {"x": [1]}, "input": [{"data_type": "TYPE_FP4"}]}, {"name": "m"}),
        ("ModelConfig", None, {}),
        ("ModelMetadata", {"name": "m", "properties": {"a": "b"}, "inputs": None}, {"name": "m"}),
        ("ServerMetadata", {"name": "kserve", "version": "1", "live": True}, {"name": "kserve", "version": "1"}),
        ("ModelStatistics", {"model_stats": [{"name": "m", "p99": 3}]}, {"model_stats": [{"name": "m"}]}),
        ("RepositoryIndex", [{"name": "m", "pinned": True}], {"models": [{"name": "m"}]}),
    ],
)
def test_what_younger_servers_say(rpc: str, reply: Any, fields: Fields) -> None:
    """Fields missing from the schema are dropped, and the other fields are converted."""
    text = parse(f"inference.{rpc}Response", rpc_response(rpc, 200, body(reply)))
    if rpc == "ModelConfig":
        assert text.config.name == fields.get("name", "")
    else:
        assert text == message(f"inference.{rpc}Response")(**fields)


@pytest.mark.parametrize(
    ("rpc", "field", "status", "reply", "is_so"),
    [
        ("ServerLive", "live", 200, b'{"live":true}', True),
        ("ServerLive", "live", 200, b'{"live":false}', False),
        ("ServerReady", "ready", 200, b"OK", True),
        ("ServerReady", "ready", 400, b"<html>", False),
        ("ModelReady", "ready", 200, b'{"name":"m","ready":false}', False),
        ("ModelReady", "ready", 200, b'{"name":"m","ready":true}', True),
        ("ModelReady", "ready", 200, b"[]", True),
    ],
)
def test_health_in_other_dialects(rpc: str, field: str, status: int, reply: bytes, is_so: bool) -> None:
    """Triton reports health by status code only; Open Inference Protocol servers may also report "not ready" in
    JSON."""
    assert getattr(parse(f"inference.{rpc}Response", rpc_response(rpc, status, reply)), field) is is_so


# REST requests that differ from the form that the gateway writes.
@pytest.mark.parametrize(
    ("method", "target", "data", "rpc", "fields"),
    [
        ("GET", "/v2/health/live?verbose=1", b"ignored", "ServerLive", {}),
        ("GET", "/v2/models/%61dder", b"", "ModelMetadata", {"name": "adder"}),
        ("POST", "/v2/repository/index", b"", "RepositoryIndex", {}),
        ("POST", "/v2/repository/r/index", b'{"more":1}', "RepositoryIndex", {"repository_name": "r"}),
        ("POST", "/v2/repository/models/m/load", b"", "RepositoryModelLoad", {"model_name": "m"}),
        (
            "POST",
            "/v2/repository/models/m/load",
            b'{"parameters":{"file:1/x":"e \\n30="}}',
            "RepositoryModelLoad",
            {"model_name": "m", "parameters": {"file:1/x": {"bytes_param": b"{}"}}},
        ),
        ("POST", "/v2/repository/models/m/unload", b"", "RepositoryModelUnload", {"model_name": "m"}),
        (
            "POST",
            "/v2/systemsharedmemory/region/r/register",
            b'{"key":"k","byte_size":8,"name":"another"}',
            "SystemSharedMemoryRegister",
            {"name": "r", "key": "k", "byte_size": 8},
        ),
        ("POST", "/v2/trace/setting", b"{}", "TraceSetting", {}),
        ("POST", "/v2/trace/setting", b'{"trace_level":[]}', "TraceSetting", {}),
        ("POST", "/v2/logging", b'{"log_info":null}', "LogSettings", {}),
    ],
)
def test_rest_requests(method: str, target: str, data: bytes, rpc: str, fields: Fields) -> None:
    """An empty body is accepted where Triton needs none, and null leaves a log setting unchanged."""
    assert rpc_request(method, target, data) == (rpc, request(rpc, **fields))
