"""Requests as bytes, each with Triton's status, which the gateway must not change.

Every request states a status, so that two servers with the same failure do not pass the comparison.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ADDER = "/v2/models/adder/infer"


@dataclass(frozen=True)
class Request:
    status: int
    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def get(path: str, status: int = 200, **headers: str) -> Request:
    return Request(status, "GET", path, headers=spell(headers))


def post(path: str, body: Any = b"", status: int = 200, **headers: str) -> Request:
    """A POST request; a body other than bytes is sent as JSON."""
    return Request(status, "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), spell(headers))


def spell(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def adder_request(a: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    """A request for 1 + 10 and 2 + 20; the arguments replace members of input `a` or of the request."""
    inputs = [{**tensor("a", "INT32", [1, 2], [1, 2]), **(a or {})}, tensor("b", "INT32", [1, 2], [10, 20])]
    return {"inputs": inputs, **members}


def text_request(text: str) -> dict[str, Any]:
    return {"inputs": [tensor("text_input", "BYTES", [1], [text])]}


def sequence_request(**parameters: Any) -> dict[str, Any]:
    return {"inputs": [tensor("value", "INT32", [1, 1], [1])], "parameters": parameters}


ADDER_JSON = json.dumps(adder_request()).encode()

BINARY_HEADER = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}} for name in "ab"
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
BINARY_BODY = BINARY_HEADER + struct.pack("<2i", 1, 2) + struct.pack("<2i", 10, 20)
BINARY_LENGTH = str(len(BINARY_HEADER))

REQUESTS = {
    # Server and model facts.
    "live": get("/v2/health/live"),
    "ready": get("/v2/health/ready"),
    "live with a query": get("/v2/health/live?verbose=1"),
    "model metadata": get("/v2/models/adder"),
    "model metadata of a version": get("/v2/models/adder/versions/1"),
    "model ready": get("/v2/models/adder/ready"),
    "model version ready": get("/v2/models/adder/versions/1/ready"),
    "model config": get("/v2/models/adder/config"),
    "model version config": get("/v2/models/adder/versions/1/config"),
    "metadata of an unknown model": get("/v2/models/nope", 404),
    "metadata of an unknown version": get("/v2/models/adder/versions/9", 404),
    "ready of an unknown model": get("/v2/models/nope/ready", 400),
    "ready of an unknown version": get("/v2/models/adder/versions/9/ready", 400),
    "config of an unknown model": get("/v2/models/nope/config", 404),
    "stats of an unknown model": get("/v2/models/nope/stats", 400),
    "stats of an unknown version": get("/v2/models/adder/versions/9/stats", 400),
    "a model named stats": get("/v2/models/stats/ready", 400),
    # Paths and verbs.
    "root": get("/", 404),
    "unknown path": get("/nothing/here", 404),
    "unknown path, posted": post("/nothing/here", {}, 404),
    "unknown operation": get("/v2/models/adder/nothing", 404),
    "model list does not exist": get("/v2/models", 404),
    "health alone": get("/v2/health", 404),
    "trailing slash on /v2": get("/v2/", 404),
    "trailing slash on live": get("/v2/health/live/", 404),
    "trailing slash on a model": get("/v2/models/adder/", 404),
    "trailing slash on infer": post(f"{ADDER}/", adder_request(), 404),
    "double slash": post(f"/{ADDER}", adder_request(), 404),
    "dots are not resolved": post(f"/v2/..{ADDER}", adder_request(), 404),
    "escapes are not resolved": post("/v2/models/%61dder/infer", adder_request(), 404),
    "version not in digits": post("/v2/models/adder/versions/one/infer", adder_request(), 404),
    "infer by GET": get(ADDER, 405),
    "infer by OPTIONS": Request(405, "OPTIONS", ADDER),
    "infer by PUT": Request(405, "PUT", ADDER, ADDER_JSON),
    "infer by DELETE": Request(405, "DELETE", ADDER),
    "infer by PATCH": Request(405, "PATCH", ADDER, ADDER_JSON),
    "generate by GET": get("/v2/models/text/generate", 405),
    "generate_stream by GET": get("/v2/models/text/generate_stream", 405),
    "live by POST": post("/v2/health/live", status=405),
    "server metadata by POST": post("/v2", status=405),
    "metadata by POST": post("/v2/models/adder", status=405),
    "model ready by POST": post("/v2/models/adder/ready", status=405),
    "config by POST": post("/v2/models/adder/config", status=405),
    "stats by POST": post("/v2/models/adder/stats", status=405),
    "index by GET": get("/v2/repository/index", 405),
    "load by GET": get("/v2/repository/models/adder/load", 405),
    "shared memory status by POST": post("/v2/systemsharedmemory/status", status=405),
    "shared memory register by GET": get("/v2/systemsharedmemory/region/r/register", 405),
    "log settings by DELETE": Request(405, "DELETE", "/v2/logging"),
    "trace settings by DELETE": Request(405, "DELETE", "/v2/trace/setting"),
    # Infer.
    "infer": post(ADDER, adder_request()),
    "infer of a version": post("/v2/models/adder/versions/1/infer", adder_request()),
    "infer with a query": post(f"{ADDER}?a=b&c=%20d", adder_request()),
    "infer with id and one output": post(ADDER, adder_request(id="7", outputs=[{"name": "diff"}])),
    "infer in an unusual layout": post(ADDER, b"\n " + json.dumps(adder_request(), indent=3).encode() + b"\r\n"),
    "infer with an unusual content type": post(ADDER, adder_request(), content_type="text/plain"),
    "infer in binary": post(ADDER, BINARY_BODY, inference_header_content_length=BINARY_LENGTH),
    "infer in binary, gzip both ways": post(
        ADDER,
        gzip.compress(BINARY_BODY),
        inference_header_content_length=BINARY_LENGTH,
        content_encoding="gzip",
        accept_encoding="gzip",
    ),
    "infer, deflate both ways": post(
        ADDER, zlib.compress(ADDER_JSON), content_encoding="deflate", accept_encoding="deflate"
    ),
    "infer, encodings by preference": post(ADDER, adder_request(), accept_encoding="br, gzip;q=0.5"),
    "infer, identity encoding": post(ADDER, adder_request(), content_encoding="identity"),
    "infer of BYTES": post("/v2/models/text/infer", text_request("zürich")),
    "infer with parameters": post("/v2/models/text/infer", {**text_request("x"), "parameters": {"n": 3, "s": "é"}}),
    "infer with a forwarded header": post("/v2/models/text/infer", text_request("x"), x_forward_tenant="acme"),
    "classification": post(
        "/v2/models/classifier/infer",
        {
            "inputs": [tensor("scores", "FP32", [1, 4], [0.1, 0.2, 0.3, 0.9])],
            "outputs": [{"name": "probabilities", "parameters": {"classification": 2}}],
        },
    ),
    "sequence of one": post(
        "/v2/models/accumulator/infer", sequence_request(sequence_id=5, sequence_start=True, sequence_end=True)
    ),
    # Infer, refused.
    "unknown model": post("/v2/models/nope/infer", adder_request(), 404),
    "unknown model, malformed": post("/v2/models/nope/infer", b"{", 404),
    "unknown version": post("/v2/models/adder/versions/9/infer", adder_request(), 404),
    "version beyond 64 bits": post("/v2/models/adder/versions/99999999999999999999/infer", adder_request(), 400),
    "malformed JSON": post(ADDER, b"{not json", 500),
    "empty body": post(ADDER, b"", 400),
    "JSON of another kind": post(ADDER, [], 500),
    "no inputs": post(ADDER, {}, 500),
    "deep nesting": post(ADDER, b'{"inputs":' + b"[" * 200 + b"]" * 200 + b"}", 400),
    "wrong shape": post(ADDER, adder_request({"shape": [1, 3]}), 500),
    "wrong rank": post(ADDER, adder_request({"shape": [2]}), 400),
    "negative shape": post(ADDER, adder_request({"shape": [1, -2]}), 500),
    "wrong datatype": post(ADDER, adder_request({"datatype": "FP32"}), 400),
    "unknown datatype": post(ADDER, adder_request({"datatype": "INT33"}), 400),
    "data of another type": post(ADDER, adder_request({"data": ["x", "y"]}), 500),
    "unknown input": post(ADDER, adder_request({"name": "c"}), 400),
    "missing input": post(ADDER, {"inputs": [tensor("a", "INT32", [1, 2], [1, 2])]}, 400),
    "unknown output": post(ADDER, adder_request(outputs=[{"name": "c"}]), 400),
    "id not a string": post(ADDER, adder_request(id=7), 500),
    "reserved parameter": post(ADDER, adder_request(parameters={"triton_x": 1}), 400),
    "batch too large": post(
        ADDER, {"inputs": [tensor("a", "INT32", [9, 1], [1] * 9), tensor("b", "INT32", [9, 1], [1] * 9)]}, 400
    ),
    "binary header too long": post(ADDER, BINARY_BODY, 400, inference_header_content_length="99999"),
    "binary header negative": post(ADDER, BINARY_BODY, 400, inference_header_content_length="-1"),
    "binary header not a number": post(ADDER, BINARY_BODY, 400, inference_header_content_length="x"),
    "unknown content encoding": post(ADDER, adder_request(), 501, content_encoding="zstd"),
    "gzip that is not": post(ADDER, adder_request(), 400, content_encoding="gzip"),
    "failing model": post("/v2/models/failer/infer", text_request("boom"), 500),
    "decoupled model": post("/v2/models/repeater/infer", text_request("x"), 501),
    "sequence without an id": post("/v2/models/accumulator/infer", sequence_request(), 400),
    "sequence without a start": post("/v2/models/accumulator/infer", sequence_request(sequence_id=6), 400),
    "unregistered region": post(
        "/v2/models/text/infer",
        {
            "inputs": [
                {
                    "name": "text_input",
                    "datatype": "BYTES",
                    "shape": [1],
                    "parameters": {"shared_memory_region": "nope", "shared_memory_byte_size": 8},
                }
            ]
        },
        404,
    ),
    # Generate.
    "generate": post("/v2/models/text/generate", {"text_input": "hello"}),
    "generate of a version": post("/v2/models/text/versions/1/generate", {"text_input": "hello"}),
    "generate with parameters": post(
        "/v2/models/text/generate",
        {"id": "i", "text_input": "hello", "parameters": {"temperature": 0.5, "n": 3, "stop": "x"}, "extra": True},
    ),
    "generate from a decoupled model": post("/v2/models/repeater/generate", {"text_input": "hello"}),
    "generate of two answers": post("/v2/models/repeater/generate", {"text_input": "hello", "count": 2}),
    "generate of no answer": post("/v2/models/repeater/generate", {"text_input": "hello", "count": 0}),
    "generate_stream": post("/v2/models/repeater/generate_stream", {"text_input": "hello", "count": 3}),
    "generate_stream of a version": post(
        "/v2/models/repeater/versions/1/generate_stream", {"text_input": "hello", "count": 3}
    ),
    "generate_stream of many answers": post("/v2/models/repeater/generate_stream", {"text_input": "é", "count": 200}),
    "generate_stream of no answer": post("/v2/models/repeater/generate_stream", {"text_input": "hello", "count": 0}),
    "generate_stream from a plain model": post("/v2/models/text/generate_stream", {"text_input": "hello"}),
    "generate_stream fails at once": post(
        "/v2/models/repeater/generate_stream", {"text_input": "hello", "count": 3, "fail_after": 0}, 400
    ),
    "generate_stream fails later": post(
        "/v2/models/repeater/generate_stream", {"text_input": "hello", "count": 3, "fail_after": 2}
    ),
    "generate_stream of a failing model": post("/v2/models/failer/generate_stream", {"text_input": "boom"}, 400),
    "generate of a failing model": post("/v2/models/failer/generate", {"text_input": "boom"}, 400),
    **{
        f"{operation}, {name}": post(f"/v2/models/{model}/{operation}", body, status)
        for operation in ("generate", "generate_stream")
        for name, model, body, status in (
            ("unknown model", "nope", {"text_input": "x"}, 404),
            ("unknown version", "text/versions/9", {"text_input": "x"}, 404),
            ("malformed", "text", b"{", 500),
            ("empty", "text", b"", 500),
            ("missing input", "text", {}, 400),
            ("wrong type", "text", {"text_input": 5}, 500),
        )
    },
    **{
        f"{operation}, {name}": post(f"/v2/models/text/{operation}", body, status)
        for operation in ("generate", "generate_stream")
        for name, body, status in (
            ("an input twice", b'{"text_input":"x","text_input":"y"}', 400),
            ("an input twice, nested", b'{"text_input":"x","parameters":{"text_input":"y"}}', 400),
            ("an input twice below", b'{"parameters":{"text_input":"x","text_input":"y"}}', 400),
            ("an input's name as a value", b'{"text_input":"text_input","other":"text_input"}', 200),
        )
    },
    "generate, compressed": post(
        "/v2/models/text/generate", gzip.compress(b'{"text_input":"x"}'), 400, content_encoding="gzip"
    ),
    # Repository, shared memory and settings, refused.
    "load of an unknown model": post("/v2/repository/models/nope/load", status=500),
    "load, malformed": post("/v2/repository/models/text/load", b"{", 500),
    "load with a config that is none": post("/v2/repository/models/text/load", {"parameters": {"config": "{"}}, 500),
    "load with an unknown parameter": post("/v2/repository/models/text/load", {"parameters": {"zzz": "1"}}, 500),
    "load from a named repository": post("/v2/repository/other/models/text/load", status=501),
    "unload of an unknown model": post("/v2/repository/models/nope/unload"),
    "index, malformed": post("/v2/repository/index", b"{", 500),
    "shared memory, unknown region": get("/v2/systemsharedmemory/region/nope/status", 404),
    "shared memory, unknown key": post(
        "/v2/systemsharedmemory/region/r/register", {"key": "/nope", "offset": 0, "byte_size": 64}, 500
    ),
    "shared memory, no key": post("/v2/systemsharedmemory/region/r/register", {}, 400),
    "shared memory, malformed": post("/v2/systemsharedmemory/region/r/register", b"{", 500),
    "shared memory, no region": post("/v2/systemsharedmemory/register", {}, 400),
    "shared memory, unknown unregister": post("/v2/systemsharedmemory/region/nope/unregister"),
    "CUDA shared memory": get("/v2/cudasharedmemory/status"),
    "CUDA shared memory, no handle": post("/v2/cudasharedmemory/region/r/register", {}, 400),
    "CUDA shared memory, unregister": post("/v2/cudasharedmemory/unregister"),
    "log settings": get("/v2/logging"),
    "log settings, malformed": post("/v2/logging", b"{", 500),
    "log settings, wrong type": post("/v2/logging", {"log_info": "x"}, 500),
    "trace settings": get("/v2/trace/setting"),
    "trace settings, malformed": post("/v2/trace/setting", b"{", 500),
    "trace settings of a model": get("/v2/models/text/trace/setting"),
    "trace settings of an unknown model": get("/v2/models/nope/trace/setting", 400),
    "trace settings of a version": get("/v2/models/text/versions/1/trace/setting", 404),
}
