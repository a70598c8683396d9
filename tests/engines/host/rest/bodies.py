"""Unusual and invalid infer and generate bodies, for a comparison with a real Triton. Faults that the host's service
finds, in names, shapes and sizes, are not included."""

import gzip
import json
from typing import Any

from tests.conformance.requests import (
    ADDER,
    ADDER_JSON,
    BINARY_BODY,
    BINARY_LENGTH,
    Request,
    adder_request,
    post,
    tensor,
    text_request,
)

TEXT = "/v2/models/text"
_MISSING = object()


def with_input(**members: Any) -> dict[str, Any]:
    """An adder request whose first input has other members."""
    first = {**tensor("a", "INT32", [1, 2], [1, 2]), **members}
    first = {key: value for key, value in first.items() if value is not _MISSING}
    return {"inputs": [first, tensor("b", "INT32", [1, 2], [10, 20])]}


def sized(size: Any, shape: int = 2) -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    inputs = [{"name": name, "shape": [1, shape], "datatype": "INT32", "parameters": parameters} for name in "ab"]
    return {"inputs": inputs}


INPUTS: dict[str, dict[str, Any]] = {
    "a null name": {"name": None},
    "no name": {"name": _MISSING},
    "a null shape": {"shape": None},
    "a shape of texts": {"shape": ["x"]},
    "a shape of fractions": {"shape": [1.0, 2]},
    "a datatype that is a number": {"datatype": 3},
    "data that is a scalar": {"data": 5},
    "null data": {"data": None},
    "no data": {"data": _MISSING},
    "parameters that are an array": {"parameters": [1]},
    "data twice": {"parameters": {"binary_data_size": 8}},
    "data here and in shared memory": {"parameters": {"shared_memory_region": "x"}},
    "nested data": {"data": [[1], [2]]},
    "unevenly nested data": {"data": [[[1]], 2]},
    "too many elements": {"data": [1, 2, 3]},
    "too few elements": {"data": [1]},
    "a text among too many elements": {"data": [1, "x", 3]},
    "a text behind enough elements": {"data": [1, 2, "x"]},
    "booleans": {"data": [True, 1]},
    "fractions": {"data": [1.0, 2]},
    "more than 32 bits": {"data": [2**40, 1]},
    "more than 63 bits": {"data": [2**63, 1]},
    "more than 64 bits": {"data": [2**70, 1]},
    "FP16 in JSON": {"datatype": "FP16"},
    "negative numbers for UINT32": {"datatype": "UINT32", "data": [-1, 2]},
    "texts for FP32": {"datatype": "FP32", "data": ["1", 2]},
    "numbers for BOOL": {"datatype": "BOOL", "data": [1, 0]},
    "numbers for BYTES": {"datatype": "BYTES", "data": ["a", 1]},
}
PARAMETERS: dict[str, Any] = {
    "an array": [1],
    "null": None,
    "a text": "x",
    "a negative sequence_id": {"sequence_id": -1},
    "a fraction as sequence_id": {"sequence_id": 1.5},
    "a number as sequence_start": {"sequence_start": 1},
    "a text as sequence_end": {"sequence_end": "t"},
    "a negative priority": {"priority": -1},
    "a text as priority": {"priority": "1"},
    "a fraction as timeout": {"timeout": 1.5},
    "a number as binary_data_output": {"binary_data_output": 1},
    "a null one": {"x": None},
    "an array as one": {"x": [1]},
    "an object as one": {"x": {}},
    "gRPC's own": {"triton_enable_empty_final_response": True},
}
OUTPUTS: dict[str, Any] = {
    "an object": {},
    "null": None,
    "one without a name": [{}],
    "a number as name": [{"name": 1}],
    "shared memory and classes": [{"name": "sum", "parameters": {"shared_memory_region": "x", "classification": 1}}],
    "shared memory and binary": [{"name": "sum", "parameters": {"shared_memory_region": "x", "binary_data": True}}],
    "a text as binary_data": [{"name": "sum", "parameters": {"binary_data": "x"}}],
    "a text as classification": [{"name": "sum", "parameters": {"classification": "x"}}],
    "a negative classification": [{"name": "sum", "parameters": {"classification": -1}}],
    "no classes": [{"name": "sum", "parameters": {"classification": 0}}],
    "more classes than values": [{"name": "sum", "parameters": {"classification": 100}}],
    "classes in binary": [{"name": "sum", "parameters": {"classification": 1, "binary_data": True}}],
    "one twice": [{"name": "sum"}, {"name": "sum", "parameters": {"binary_data": True}}],
    "binary and JSON": [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "diff"}],
    "an unknown region": [{"name": "sum", "parameters": {"shared_memory_region": "nope"}}],
    "a number as region": [{"name": "sum", "parameters": {"shared_memory_region": 1}}],
}
GENERATES: dict[str, Any] = {
    "an array": [],
    "a number": 5,
    "a number as id": {"id": 5, "text_input": "x"},
    "parameters that are an array": {"text_input": "x", "parameters": [1]},
    "a null parameter": {"text_input": "x", "a": None},
    "a nested null parameter": {"text_input": "x", "parameters": {"a": None}},
    "an array of one": {"text_input": ["x"]},
    "an array of two": {"text_input": ["x", "y"]},
    "an empty array": {"text_input": []},
    "a nested array": {"text_input": [["x"]]},
    "an input twice": {"text_input": "x", "parameters": {"text_input": "y"}},
    "an input among the parameters": {"parameters": {"text_input": "y"}},
    "a number among the parameters": {"parameters": {"text_input": 5}},
    "more than 63 bits": {"text_input": "x", "n": 2**63},
    "a reserved parameter": {"text_input": "x", "triton_x": 1},
    "a sequence": {"text_input": "x", "sequence_id": 1},
}

BODIES: dict[str, Request] = {
    **{f"an input with {name}": post(ADDER, with_input(**members), 0) for name, members in INPUTS.items()},
    **{f"parameters: {name}": post(ADDER, adder_request(parameters=value), 0) for name, value in PARAMETERS.items()},
    **{f"outputs: {name}": post(ADDER, adder_request(outputs=value), 0) for name, value in OUTPUTS.items()},
    **{
        f"{operation}: {name}": post(f"{TEXT}/{operation}", json.dumps(value).encode(), 0)
        for operation in ("generate", "generate_stream")
        for name, value in GENERATES.items()
    },
    "binary data that ends early": post(ADDER, BINARY_BODY[:-3], 0, inference_header_content_length=BINARY_LENGTH),
    "binary data and more": post(ADDER, BINARY_BODY + b"123", 0, inference_header_content_length=BINARY_LENGTH),
    "binary data without a header": post(ADDER, BINARY_BODY, 0),
    "binary data of a negative size": post(ADDER, sized(-1), 0),
    "binary data of a text as size": post(ADDER, sized("8"), 0),
    "binary data of no size": post(ADDER, sized(0, 0), 0),
    "a raw request": post(f"{TEXT}/infer", b"hello", 0, inference_header_content_length="0"),
    "an empty raw request": post(f"{TEXT}/infer", b"", 0, inference_header_content_length="0"),
    "encodings by weight": post(ADDER, adder_request(), 0, accept_encoding="deflate;q=0.4, gzip;q=0.3"),
    "identity by preference": post(ADDER, adder_request(), 0, accept_encoding="identity"),
    "any encoding": post(ADDER, adder_request(), 0, accept_encoding="*"),
    "nothing, compressed": post(ADDER, b"", 0, content_encoding="gzip"),
    "gzip that ends early": post(ADDER, gzip.compress(ADDER_JSON)[:40], 0, content_encoding="gzip"),
    "an id with escapes": post(ADDER, adder_request(id='a"bé\n/'), 0),
    "an empty id": post(ADDER, adder_request(id=""), 0),
    "a null id": post(ADDER, adder_request(id=None), 0),
    "a text with escapes": post(f"{TEXT}/infer", text_request('a"bé\n/\u0001😀'), 0),
    "a text for an INT32 in generate": post("/v2/models/repeater/generate", {"text_input": "x", "count": "y"}, 0),
    "two elements for one in generate": post("/v2/models/repeater/generate", {"text_input": "x", "count": [1, 2]}, 0),
}
