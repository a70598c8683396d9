"""Control requests that cannot be converted, and the conversion of error replies."""

import pytest

from gateway.protocol.conversion.control import rest_request, rest_response, rpc_request, rpc_response
from gateway.protocol.conversion.control_errors import RpcError, rest_error
from gateway.protocol.conversion.control_table import CONTROLS
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import message
from gateway.protocol.translator import Reply
from tests.protocol.conversion.control_cases import Fields, request


@pytest.mark.parametrize(
    ("rpc", "fields", "kind", "text"),
    [
        ("ModelReady", {}, ErrorKind.BAD_REQUEST, "the ModelReady request names no model"),
        ("ModelMetadata", {"version": "1"}, ErrorKind.BAD_REQUEST, "the ModelMetadata request names no model"),
        ("RepositoryModelLoad", {}, ErrorKind.BAD_REQUEST, "the RepositoryModelLoad request names no model"),
        ("ModelConfig", {"name": "m", "version": "one"}, ErrorKind.BAD_REQUEST, "specified version string 'one'"),
        ("ModelConfig", {"name": "m", "version": "-1"}, ErrorKind.BAD_REQUEST, "specified version string '-1'"),
        ("ModelConfig", {"name": "m", "version": "1/config"}, ErrorKind.BAD_REQUEST, "version string '1/config'"),
        ("ModelConfig", {"name": "m", "version": "٣"}, ErrorKind.BAD_REQUEST, "should be an integral value > 0"),
        ("ModelConfig", {"name": "m", "version": "9" * 5000}, ErrorKind.BAD_REQUEST, "should be an integral value > 0"),
        ("ModelStatistics", {"version": "x"}, ErrorKind.BAD_REQUEST, "specified version string 'x'"),
        ("ModelMetadata", {"name": "stats"}, ErrorKind.UNSUPPORTED, "REST has no path for this ModelMetadata"),
        ("RepositoryIndex", {"repository_name": "r"}, ErrorKind.UNSUPPORTED, "'repository_name' specification is not"),
        (
            "RepositoryModelLoad",
            {"model_name": "m", "parameters": {"config": {"bytes_param": b"{}"}}},
            ErrorKind.BAD_REQUEST,
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "RepositoryModelLoad",
            {"model_name": "m", "parameters": {"file:1/x": {"string_param": "x"}}},
            ErrorKind.BAD_REQUEST,
            "invalid value type for load parameter 'file:1/x', expected bytes_param.",
        ),
        (
            "RepositoryModelLoad",
            {"model_name": "m", "parameters": {"colour": {"string_param": "x"}}},
            ErrorKind.BAD_REQUEST,
            "unrecognized load parameter 'colour'.",
        ),
        (
            "RepositoryModelUnload",
            {"model_name": "m", "parameters": {"unload_dependents": {"int64_param": 1}}},
            ErrorKind.BAD_REQUEST,
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
        (
            "RepositoryModelUnload",
            {"model_name": "m", "parameters": {"x": {"bytes_param": b"1"}}},
            ErrorKind.BAD_REQUEST,
            "unload parameter 'x' must be",
        ),
        (
            "TraceSetting",
            {"settings": {"trace_rate": {"value": ["1", "2"]}}},
            ErrorKind.BAD_REQUEST,
            "expect only 1 value for 'trace_rate'",
        ),
        (
            "LogSettings",
            {"settings": {"log_info": {"string_param": "x"}}},
            ErrorKind.BAD_REQUEST,
            "expect boolean for 'log_info'",
        ),
        (
            "LogSettings",
            {"settings": {"log_verbose_level": {"bool_param": True}}},
            ErrorKind.BAD_REQUEST,
            "expect int32 for 'log_verbose_level'",
        ),
        ("LogSettings", {"settings": {"colour": {}}}, ErrorKind.BAD_REQUEST, "expect value for 'colour'"),
    ],
)
def test_refused_rpc_requests(rpc: str, fields: Fields, kind: ErrorKind, text: str) -> None:
    """A gRPC request that REST cannot express, or that Triton rejects, is rejected with a reason."""
    with pytest.raises(GatewayError) as refused:
        rest_request(rpc, request(rpc, **fields))
    assert refused.value.kind is kind
    assert text in refused.value.message


LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"
SYSTEM = "/v2/systemsharedmemory/region/r/register"
CUDA = "/v2/cudasharedmemory/region/r/register"


@pytest.mark.parametrize(
    ("method", "target", "data", "kind", "text"),
    [
        ("GET", "/", b"", ErrorKind.NOT_FOUND, "Not Found"),
        ("GET", "/v2/", b"", ErrorKind.NOT_FOUND, "Not Found"),
        ("GET", "/v2/models/m/", b"", ErrorKind.NOT_FOUND, "Not Found"),
        ("GET", "/v2/models/m/versions/one", b"", ErrorKind.NOT_FOUND, "Not Found"),
        ("GET", "/v2/models/m/versions/1/trace/setting", b"", ErrorKind.NOT_FOUND, "Not Found"),
        ("GET", "/v2/models/versions/1/stats", b"", ErrorKind.NOT_FOUND, "Not Found"),
        ("POST", "/v2/models/m/infer", b"{}", ErrorKind.NOT_FOUND, "Not Found"),
        ("POST", "/v2/models/m", b"", ErrorKind.METHOD_NOT_ALLOWED, "Method Not Allowed"),
        ("GET", LOAD, b"", ErrorKind.METHOD_NOT_ALLOWED, "Method Not Allowed"),
        ("DELETE", "/v2/logging", b"", ErrorKind.METHOD_NOT_ALLOWED, "Method Not Allowed"),
        ("GET", f"/v2/models/m/versions/{'9' * 20}/ready", b"", ErrorKind.BAD_REQUEST, "should be an integral value"),
        ("GET", "/v2/models/\udcff", b"", ErrorKind.BAD_REQUEST, "failed to read the ModelMetadata request"),
        ("POST", "/v2/repository/index", b"{", ErrorKind.BAD_REQUEST, "failed to read the RepositoryIndex request"),
        ("POST", "/v2/repository/index", b"[]", ErrorKind.BAD_REQUEST, "it is no object"),
        ("POST", "/v2/repository/index", b'{"ready":1}', ErrorKind.BAD_REQUEST, "'ready': expected a boolean"),
        ("POST", LOAD, b'{"parameters":[]}', ErrorKind.BAD_REQUEST, "'parameters' must be an object"),
        ("POST", LOAD, b'{"parameters":{"config":{}}}', ErrorKind.BAD_REQUEST, "'config' must be a string"),
        ("POST", LOAD, b'{"parameters":{"x":"y"}}', ErrorKind.BAD_REQUEST, "unrecognized load parameter 'x'"),
        ("POST", LOAD, b'{"parameters":{"file:1/x":"%"}}', ErrorKind.BAD_REQUEST, "'file:1/x' must be base64"),
        ("POST", LOAD, '{"parameters":{"file:1/x":"ü"}}'.encode(), ErrorKind.BAD_REQUEST, "must be base64"),
        ("POST", UNLOAD, b'{"parameters":{"x":1.5}}', ErrorKind.BAD_REQUEST, "unload parameter 'x' must be"),
        ("POST", UNLOAD, b'{"parameters":{"x":18446744073709551615}}', ErrorKind.BAD_REQUEST, "of 64 bits"),
        ("POST", SYSTEM, b"", ErrorKind.BAD_REQUEST, "Shared memory register request has no 'key' field"),
        ("POST", SYSTEM, b'{"key":"k"}', ErrorKind.BAD_REQUEST, "request has no 'byte_size' field"),
        ("POST", SYSTEM, b'{"key":3,"byte_size":8}', ErrorKind.BAD_REQUEST, "key"),
        ("POST", SYSTEM, b'{"key":"k","byte_size":-8}', ErrorKind.BAD_REQUEST, "byte_size"),
        (
            "POST",
            "/v2/systemsharedmemory/register",
            b'{"key":"k"}',
            ErrorKind.BAD_REQUEST,
            "'region name' is necessary",
        ),
        ("POST", CUDA, b'{"raw_handle":{"b64":"eA=="}}', ErrorKind.BAD_REQUEST, "request has no 'device_id' field"),
        (
            "POST",
            CUDA,
            b'{"raw_handle":"eA==","device_id":0,"byte_size":8}',
            ErrorKind.BAD_REQUEST,
            "'raw_handle' must be an object with a string 'b64'",
        ),
        ("POST", "/v2/trace/setting", b'{"trace_rate":7}', ErrorKind.BAD_REQUEST, "'trace_rate' must be a string"),
        ("POST", "/v2/trace/setting", b'{"trace_rate":["7"]}', ErrorKind.BAD_REQUEST, "'trace_rate' must be a string"),
        ("POST", "/v2/trace/setting", b'{"trace_level":"OFF"}', ErrorKind.BAD_REQUEST, "must be an array of strings"),
        ("POST", "/v2/logging", b'{"log_verbose_level":4294967296}', ErrorKind.BAD_REQUEST, "whole number of 32 bits"),
        ("POST", "/v2/logging", b'{"log_verbose_level":1.5}', ErrorKind.BAD_REQUEST, "'log_verbose_level' must be"),
    ],
)
def test_refused_rest_requests(method: str, target: str, data: bytes, kind: ErrorKind, text: str) -> None:
    """A REST request that is no valid Triton control request is rejected with a reason."""
    with pytest.raises(GatewayError) as refused:
        rpc_request(method, target, data)
    assert refused.value.kind is kind
    assert text in refused.value.message


@pytest.mark.parametrize(
    ("status", "reply", "code", "text"),
    [
        (400, b'{"error":"bad"}', 3, "bad"),
        (401, b'{"error":"who?"}', 16, "who?"),
        (403, b'{"error":"This API is restricted"}', 7, "This API is restricted"),
        (404, '{"error":"\'ü\' is not found"}'.encode(), 5, "'ü' is not found"),
        (404, b'{"detail":"Not Found"}', 5, "Not Found"),
        (405, b"", 12, "HTTP status 405"),
        (409, b"busy\n", 10, "busy"),
        (413, b'{"error":{"message":"too long","code":413}}', 8, "too long"),
        (418, b"{}", 3, "{}"),
        (429, b'{"error":"slow down"}', 8, "slow down"),
        (302, b"", 2, "HTTP status 302"),
        (500, b"<html>\xff</html>", 13, "<html>\ufffd</html>"),
        (501, b'{"error":"no"}', 12, "no"),
        (502, b"", 14, "HTTP status 502"),
        (503, b'{"error":"Server not ready"}', 14, "Server not ready"),
        (504, b"[1]", 4, "[1]"),
        (599, b'{"error":null}', 13, '{"error":null}'),
        (500, b"x" * 5000, 13, "x" * 1000),
    ],
)
def test_refusals_as_grpc_statuses(status: int, reply: bytes, code: int, text: str) -> None:
    """A REST error keeps its message, and its HTTP status maps to a gRPC code by Triton's table."""
    with pytest.raises(RpcError) as refused:
        rpc_response("ModelMetadata", status, reply)
    assert (refused.value.code, refused.value.message) == (code, text)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        *((code, 400) for code in (1, 2, 3, 6)),
        *((4, 504), (5, 404), (7, 403), (8, 429), (12, 501), (13, 500), (14, 503), (16, 401), (99, 500)),
    ],
)
def test_refusals_as_rest(code: int, status: int) -> None:
    """A gRPC status code maps to the HTTP status that Triton's REST API uses."""
    assert rest_error(code, 'no "ü"') == Reply(status, '{"error":"no \\"ü\\""}'.encode())


def test_a_refusal_may_say_anything() -> None:
    """Characters of an error message that cannot be encoded are replaced by question marks."""
    assert rest_error(13, "\udcff") == Reply(500, b'{"error":"?"}')


@pytest.mark.parametrize("health", ["ServerLive", "ServerReady", "ModelReady"])
def test_health_can_fail(health: str) -> None:
    """An error body in a health reply is an error, and does not mean "not ready"."""
    with pytest.raises(RpcError) as refused:
        rpc_response(health, 503, b'{"error":"down"}')
    assert (refused.value.code, refused.value.message) == (14, "down")


@pytest.mark.parametrize(
    ("rpc", "reply"),
    [
        ("ServerMetadata", b"OK"),
        ("ServerMetadata", b"[]"),
        ("ServerMetadata", b'{"name":3}'),
        ("ModelMetadata", b'{"inputs":[3]}'),
        ("ModelMetadata", b'{"inputs":[{"shape":["x"]}]}'),
        ("ModelConfig", b'"x"'),
        ("ModelConfig", b'{"input":{}}'),
        ("ModelStatistics", b'{"model_stats":[{"inference_count":-1}]}'),
        ("ModelStatistics", b'{"model_stats":{}}'),
        ("RepositoryIndex", b"{}"),
        ("RepositoryIndex", b"[null]"),
        ("SystemSharedMemoryStatus", b'{"r":{}}'),
        ("CudaSharedMemoryStatus", b"[[]]"),
        ("TraceSetting", b'{"trace_rate":5}'),
        ("TraceSetting", b"[]"),
        ("LogSettings", b'{"log_info":[]}'),
    ],
)
def test_answers_that_cannot_be_read(rpc: str, reply: bytes) -> None:
    """An engine's malformed success reply is a protocol error that names the RPC."""
    with pytest.raises(GatewayError) as failure:
        rpc_response(rpc, 200, reply)
    assert failure.value.kind is ErrorKind.UPSTREAM_PROTOCOL
    assert rpc in failure.value.message


@pytest.mark.parametrize("rpc", CONTROLS)
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05m", b"\x0b", b"\x0a\x02\xff\xfe"])
def test_malformed_messages(rpc: str, data: bytes) -> None:
    """A malformed protobuf message is a bad request when the client sent it, and an upstream protocol error
    otherwise."""
    has_texts = bool(message(f"inference.{rpc}Request").DESCRIPTOR.fields)
    if has_texts or data != b"\x0a\x02\xff\xfe":
        with pytest.raises(GatewayError) as refused:
            rest_request(rpc, data)
        assert refused.value.kind is ErrorKind.BAD_REQUEST
    if data in (b"\xff", b"\x0a\x05m", b"\x0b"):
        with pytest.raises(GatewayError) as failure:
            rest_response(rpc, data)
        assert failure.value.kind is ErrorKind.UPSTREAM_PROTOCOL
