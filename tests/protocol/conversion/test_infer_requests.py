"""Conversion of inference requests between gRPC and REST, member by member."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.conversion.infer import (
    OutputForm,
    infer_request_of_rest,
    rest_of_infer_request,
)
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import parse
from tests.protocol.conversion.inferences import serialised

REQUEST = "inference.ModelInferRequest"

# gRPC request, REST body

REQUESTS = {
    "nothing": ("", b'{"parameters":{"binary_data_output":true},"inputs":[]}', b""),
    "raw": (
        """id: "7" model_name: "m" model_version: "2"
        inputs {name: "a" datatype: "INT16" shape: [1, 2]} raw_input_contents: "\\001\\000\\377\\377" """,
        b'{"id":"7","parameters":{"binary_data_output":true},"inputs":[{"name":"a","datatype":"INT16","shape":[1,2],'
        b'"parameters":{"binary_data_size":4}}]}',
        b"\x01\x00\xff\xff",
    ),
    "two tensors and shared memory between": (
        """inputs {name: "a" datatype: "UINT8" shape: 1}
        inputs {name: "s" datatype: "UINT8" shape: 4
          parameters {key: "shared_memory_region" value {string_param: "r"}}
          parameters {key: "shared_memory_byte_size" value {int64_param: 4}}}
        inputs {name: "b" datatype: "UINT8" shape: 1}
        raw_input_contents: "x" raw_input_contents: "y" """,
        b'{"parameters":{"binary_data_output":true},"inputs":[{"name":"a","datatype":"UINT8","shape":[1],"parameters":'
        b'{"binary_data_size":1}},{"name":"s","datatype":"UINT8","shape":[4],"parameters":{"shared_memory_byte_size":4,'
        b'"shared_memory_region":"r"}},{"name":"b","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":1}}]}',
        b"xy",
    ),
    "typed contents, of which a narrow integer keeps the low bytes": (
        """inputs {name: "a" datatype: "INT8" shape: 3 contents {int_contents: [-1, 5, 300]}}
        inputs {name: "b" datatype: "BYTES" shape: 2 contents {bytes_contents: ["", "ab"]}}""",
        b'{"parameters":{"binary_data_output":true},"inputs":[{"name":"a","datatype":"INT8","shape":[3],"parameters":'
        b'{"binary_data_size":3}},{"name":"b","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":10}}]}',
        b"\xff\x05\x2c\x00\x00\x00\x00\x02\x00\x00\x00ab",
    ),
    "outputs": (
        """outputs {name: "o"} outputs {name: "c" parameters {key: "classification" value {int64_param: 3}}}
        outputs {name: "s" parameters {key: "shared_memory_region" value {string_param: "r"}}}""",
        b'{"inputs":[],"outputs":[{"name":"o","parameters":{"binary_data":true}},{"name":"c","parameters":'
        b'{"binary_data":true,"classification":3}},{"name":"s","parameters":{"shared_memory_region":"r"}}]}',
        b"",
    ),
    "parameters": (
        """parameters {key: "a" value {bool_param: false}} parameters {key: "b" value {int64_param: -5}}
        parameters {key: "c" value {uint64_param: 18446744073709551615}}
        parameters {key: "d" value {double_param: 1}} parameters {key: "e" value {string_param: ""}}
        parameters {key: "f" value {double_param: nan}}
        parameters {key: "triton_enable_empty_final_response" value {bool_param: true}}""",
        b'{"inputs":[],"parameters":{"a":false,"b":-5,"binary_data_output":true,"c":18446744073709551615,"d":1.0,'
        b'"e":"","f":NaN}}',
        b"",
    ),
    "a sequence's number, which gRPC's int64 holds the bits of": (
        """parameters {key: "sequence_id" value {int64_param: -1}} parameters {key: "timeout" value {int64_param: 5}}
        parameters {key: "sequence_start" value {bool_param: true}}""",
        b'{"inputs":[],"parameters":{"binary_data_output":true,"sequence_id":18446744073709551615,'
        b'"sequence_start":true,"timeout":5}}',
        b"",
    ),
    "a sequence's text": (
        'parameters {key: "sequence_id" value {string_param: "s"}}',
        b'{"inputs":[],"parameters":{"binary_data_output":true,"sequence_id":"s"}}',
        b"",
    ),
    "what a tensor says of REST's own transport is not REST's": (
        """inputs {name: "a" datatype: "UINT8" shape: 1
          parameters {key: "binary_data_size" value {int64_param: 999}}
          parameters {key: "mine" value {bool_param: true}}} raw_input_contents: "x" """,
        b'{"inputs":[{"datatype":"UINT8","name":"a","parameters":{"binary_data_size":1,"mine":true},"shape":[1]}],'
        b'"parameters":{"binary_data_output":true}}',
        b"x",
    ),
}


@pytest.mark.parametrize("text, head, tail", REQUESTS.values(), ids=REQUESTS)
def test_a_grpc_request_as_rest(text: str, head: bytes, tail: bytes) -> None:
    """The REST request sends every tensor in binary and requests every output in binary."""
    body = rest_of_infer_request(serialised(REQUEST, text))
    cut = len(body.data) if body.head_bytes is None else body.head_bytes
    assert values(body.data[:cut]) == values(head)
    assert body.data[cut:] == tail
    assert (body.head_bytes is None) == (not tail)


def values(text: bytes) -> Any:
    """Parsed JSON in a comparable form: member order is ignored, and 1 differs from 1.0."""
    return json.loads(text, parse_float=lambda number: ("float", number), parse_constant=str)


BAD_MESSAGES = {
    "no protobuf": (b"\xff", ErrorKind.BAD_REQUEST, "the message is malformed"),
    "a field that ends behind the message": (b"\x3a\x05x", ErrorKind.BAD_REQUEST, "the message is malformed"),
    "a name that is not UTF-8": (b"\x0a\x01\xff", ErrorKind.BAD_REQUEST, "no inference.ModelInferRequest"),
    "no data": (
        'inputs {name: "a" datatype: "INT8" shape: 1}',
        ErrorKind.BAD_REQUEST,
        "input 'a': unable to find data for it",
    ),
    "data twice": (
        'inputs {name: "a" datatype: "INT8" shape: 1 contents {int_contents: 1}} raw_input_contents: "x"',
        ErrorKind.BAD_REQUEST,
        "input 'a': contents field must not be specified when using raw_input_contents",
    ),
    "data and shared memory": (
        """inputs {name: "a" datatype: "INT8" shape: 1 contents {int_contents: 1}
        parameters {key: "shared_memory_region" value {string_param: "r"}}}""",
        ErrorKind.BAD_REQUEST,
        "input 'a': it has contents, and its data is in shared memory",
    ),
    "more data than inputs": ('raw_input_contents: "x"', ErrorKind.BAD_REQUEST, "more tensors than the request has"),
    "contents of another datatype": (
        'inputs {name: "a" datatype: "FP32" shape: 1 contents {int_contents: 1}}',
        ErrorKind.BAD_REQUEST,
        "input 'a': unexpected explicit tensor data in 'int_contents' for datatype 'FP32'",
    ),
    "contents of a datatype that has none": (
        'inputs {name: "a" datatype: "FP16" shape: 1 contents {fp32_contents: 1}}',
        ErrorKind.BAD_REQUEST,
        "input 'a': unexpected explicit tensor data in 'fp32_contents' for datatype 'FP16'",
    ),
    "a parameter without a value": ('parameters {key: "p" value {}}', ErrorKind.BAD_REQUEST, "parameter 'p' has no"),
    "REST's own parameter": (
        'parameters {key: "binary_data_output" value {bool_param: true}}',
        ErrorKind.UNSUPPORTED,
        "parameter 'binary_data_output' is REST's own",
    ),
}


@pytest.mark.parametrize("text, kind, sentence", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_a_malformed_grpc_request_is_refused(text: str | bytes, kind: ErrorKind, sentence: str) -> None:
    """A malformed gRPC request is rejected; the error names the tensor or the parameter."""
    with pytest.raises(GatewayError, match=sentence) as caught:
        rest_of_infer_request(text if isinstance(text, bytes) else serialised(REQUEST, text))
    assert caught.value.kind is kind


# REST body, gRPC request


def one(datatype: str, shape: str, data: str) -> bytes:
    return f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}'.encode()


DATA = [
    ("BOOL", "[2]", "[true,false]", b"\x01\x00"),
    ("INT32", "[2,2]", "[[1,2],[3,-1]]", b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\xff\xff\xff\xff"),
    ("INT32", "[2,2]", "[1,[2,[[3]]],-1]", b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\xff\xff\xff\xff"),
    ("UINT8", "[2]", "[255,256]", b"\xff\x00"),  # Triton keeps the low byte
    ("INT8", "[2]", "[-129,128]", b"\x7f\x80"),
    ("INT64", "[2]", "[9223372036854775807,-9223372036854775808]", b"\xff" * 7 + b"\x7f" + b"\0" * 7 + b"\x80"),
    ("UINT64", "[1]", "[18446744073709551615]", b"\xff" * 8),
    ("FP32", "[3]", "[1,1e300,-0.0]", b"\0\0\x80\x3f\0\0\x80\x7f\0\0\0\x80"),
    ("FP64", "[1]", "[Infinity]", b"\0\0\0\0\0\0\xf0\x7f"),
    ("BYTES", "[3]", '["","\\u00fc",["a"]]', b"\0\0\0\0\x02\0\0\0\xc3\xbc\x01\0\0\0a"),
    ("FP32", "[0,3]", "[]", b""),
    ("FP16", "[0]", "[]", b""),
    ("FP32", "[2,0]", "[1,2,3]", b""),  # which Triton ignores
    ("FP32", "[]", "[]", b""),
    ("FP32", "[]", "[1]", b"\0\0\x80\x3f"),
]


@pytest.mark.parametrize("datatype, shape, data, raw", DATA)
def test_data_in_json_becomes_raw(datatype: str, shape: str, data: str, raw: bytes) -> None:
    """Nested arrays are flattened, and numbers are converted as Triton converts them."""
    sent, _ = infer_request_of_rest(one(datatype, shape, data), None, "m", "3")
    request = parse(REQUEST, sent)
    assert (request.model_name, request.model_version) == ("m", "3")
    assert [*request.raw_input_contents] == [raw]
    assert request.inputs[0].datatype == datatype
    assert [*request.inputs[0].shape] == json.loads(shape)


def test_the_rest_of_a_rest_request_becomes_grpc() -> None:
    """Binary tensors, shared memory, id, parameters and requested outputs are converted; REST-only members are dropped.

    If an output is listed twice, the first form applies, as in Triton.
    """
    head = b"""{"id":"7","parameters":{"a":1,"b":1.0,"c":true,"d":"x","e":18446744073709551615,"f":-5,
        "binary_data_output":true,"sequence_id":18446744073709551615,"priority":9223372036854775808,"timeout":3},
        "inputs":[
          {"name":"x","datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":2,"k":"v","n":null}},
          {"name":"s","datatype":"UINT8","shape":[2],"parameters":{"shared_memory_region":"r","shared_memory_offset":1}},
          {"name":"y","datatype":"UINT8","shape":[1],"data":[9],"parameters":null}],
        "outputs":[{"name":"o"},{"name":"o","parameters":{"binary_data":true}},{"name":"p","parameters":{"binary_data":true,"classification":2}},
          {"name":"q","parameters":{"shared_memory_region":"r","binary_data":false}}]}"""
    sent, wanted = infer_request_of_rest(head + b"\x01\x02", len(head), "m", "")
    expected = serialised(
        REQUEST,
        """model_name: "m" id: "7"
        parameters {key: "a" value {int64_param: 1}} parameters {key: "b" value {double_param: 1}}
        parameters {key: "c" value {bool_param: true}} parameters {key: "d" value {string_param: "x"}}
        parameters {key: "e" value {double_param: 18446744073709551615}} parameters {key: "f" value {int64_param: -5}}
        parameters {key: "sequence_id" value {int64_param: -1}}
        parameters {key: "priority" value {uint64_param: 9223372036854775808}}
        parameters {key: "timeout" value {int64_param: 3}}
        inputs {name: "x" datatype: "UINT8" shape: 2 parameters {key: "k" value {string_param: "v"}}}
        inputs {name: "s" datatype: "UINT8" shape: 2 parameters {key: "shared_memory_region" value {string_param: "r"}}
          parameters {key: "shared_memory_offset" value {int64_param: 1}}}
        inputs {name: "y" datatype: "UINT8" shape: 1}
        outputs {name: "o"} outputs {name: "o"}
        outputs {name: "p" parameters {key: "classification" value {int64_param: 2}}}
        outputs {name: "q" parameters {key: "shared_memory_region" value {string_param: "r"}}}
        raw_input_contents: "\\001\\002" raw_input_contents: "\\t" """,
    )
    assert parse(REQUEST, sent) == parse(REQUEST, expected)
    forms = {"o": OutputForm.JSON, "p": OutputForm.BINARY, "q": OutputForm.SHARED_MEMORY, "other": OutputForm.BINARY}
    assert {name: wanted.form(name) for name in forms} == forms


THREE_BYTES = b'{"inputs":[{"name":"x","datatype":"INT8","shape":[3],"parameters":{"binary_data_size":3}}]}'
BAD_BODIES = {
    "no JSON": (b"{", None, "failed to parse the JSON: "),
    "no object": (b"[]", None, "the JSON must be an object"),
    "no inputs": (b"{}", None, "'inputs' is missing"),
    "inputs that are none": (b'{"inputs":5}', None, "'inputs' must be an array"),
    "an input that is none": (b'{"inputs":[5]}', None, "an object with 'name' is expected"),
    "no datatype": (b'{"inputs":[{"name":"x","data":[]}]}', None, "input 'x': 'datatype' is missing"),
    "a negative axis": (one("FP32", "[-1]", "[1]"), None, "input 'x': 'shape' must be of up to 64 whole numbers"),
    "too many axes": (one("FP32", str([1] * 65), "[1]"), None, "input 'x': 'shape' must be of up to 64"),
    "too large a shape": (one("FP32", "[4294967296,4294967296]", "[1]"), None, "its shape has more than"),
    "too few": (one("FP32", "[1,2]", "[1]"), None, r"input 'x': its data has 1 elements, its shape \[1, 2\] has 2"),
    "too many": (one("FP32", "[2]", "[1,2,3]"), None, r"input 'x': its data has 3 elements, its shape \[2\] has 2"),
    "no array": (one("FP32", "[1]", "1"), None, "input 'x': 'data' must be an array"),
    "a boolean": (one("FP32", "[1]", "[true]"), None, "input 'x': its data has a boolean in it, which is no FP32"),
    "a number": (one("BOOL", "[1]", "[1]"), None, "input 'x': its data has an integer in it, which is no BOOL"),
    "a fraction": (one("INT32", "[1]", "[1.0]"), None, "input 'x': its data has a fraction in it, which is no INT32"),
    "a text": (one("INT32", "[1]", '["1"]'), None, "input 'x': its data has a string in it, which is no INT32"),
    "null": (one("BYTES", "[1]", "[null]"), None, "input 'x': its data has null in it, which is no BYTES"),
    "below none": (one("UINT8", "[1]", "[-1]"), None, "input 'x': its data has a number .* out of the range of UINT8"),
    "above all": (one("INT8", "[1]", "[9223372036854775808]"), None, "out of the range of INT8"),
    "FP16": (one("FP16", "[1]", "[1]"), None, "input 'x': receiving FP16 data via JSON is not supported"),
    "BF16": (one("BF16", "[1]", "[1]"), None, "input 'x': receiving BF16 data via JSON is not supported"),
    "an unknown datatype": (one("FP8", "[1]", "[1]"), None, "input 'x': its datatype is 'FP8', and none of BOOL"),
    "no source": (
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1]}]}',
        None,
        "input 'x': it must set one of .* but sets none",
    ),
    "two sources": (
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1],"parameters":{"binary_data_size":1}}]}',
        None,
        "input 'x': it must set one of .* but sets binary_data_size and data",
    ),
    "too little binary data": (
        THREE_BYTES + b"z",
        len(THREE_BYTES),
        "input 'x': the body ends before its binary data, expecting 2 additional bytes",
    ),
    "too much binary data": (b'{"inputs":[]}zz', 13, "unexpected additional data: 2 bytes"),
    "a size that is none": (
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[3],"parameters":{"binary_data_size":-3}}]}',
        None,
        "input 'x': 'binary_data_size' must be a whole number",
    ),
    "a head longer than the body": (b'{"inputs":[]}', 14, r"should be in range \(0, 13\), got: 14"),
    "a reserved parameter": (b'{"inputs":[],"parameters":{"triton_x":1}}', None, "parameter 'triton_x': .* reserved"),
    "a parameter that is none": (b'{"inputs":[],"parameters":{"p":null}}', None, "parameter 'p' must be a number"),
    "a sequence below none": (b'{"inputs":[],"parameters":{"sequence_id":-1}}', None, "'sequence_id' must be a whole"),
    "a flag that is none": (b'{"inputs":[],"parameters":{"binary_data_output":1}}', None, "must be true or false"),
    "parameters that are none": (b'{"inputs":[],"parameters":[]}', None, "'parameters' must be an object"),
    "an id that is none": (b'{"inputs":[],"id":7}', None, "'id' must be a string"),
    "an id that is not UTF-8": (b'{"inputs":[],"id":"\xff"}', None, "is not UTF-8, as gRPC has it"),
    "a name that is not UTF-8": (
        b'{"inputs":[{"name":"\xff","shape":[1],"datatype":"FP32","data":[]}]}',
        None,
        "is not UTF-8",
    ),
    "an input without data whose name is not UTF-8": (
        b'{"inputs":[{"name":"\xff","shape":[1],"datatype":"FP32"}]}',
        None,
        r"input '\?': it must set one of",
    ),
    "shared memory and binary": (
        b'{"inputs":[],"outputs":[{"name":"o","parameters":{"shared_memory_region":"r","binary_data":true}}]}',
        None,
        "output 'o': it can't set both 'shared_memory_region' and 'binary_data'",
    ),
    "shared memory and classes": (
        b'{"inputs":[],"outputs":[{"name":"o","parameters":{"shared_memory_region":"r","classification":1}}]}',
        None,
        "output 'o': it can't set both 'shared_memory_region' and 'classification'",
    ),
}


@pytest.mark.parametrize("body, head_bytes, sentence", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_malformed_rest_request_is_refused(body: bytes, head_bytes: int | None, sentence: str) -> None:
    """A malformed REST request is a bad request; the error names the tensor or the member."""
    with pytest.raises(GatewayError, match=sentence) as caught:
        infer_request_of_rest(body, head_bytes, "m", "")
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    assert caught.value.message.encode()  # the message must be encodable


UNSUPPORTED = [
    (b"\x01\x02", 0, "raw binary request"),
    (
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[0],"data":[],"parameters":{"o":{}}}]}',
        None,
        "parameter 'o' of tensor 'x'",
    ),
]


@pytest.mark.parametrize("body, head_bytes, sentence", UNSUPPORTED)
def test_what_grpc_has_no_place_for_is_unsupported(body: bytes, head_bytes: int | None, sentence: str) -> None:
    """A raw binary request and an object as a tensor parameter are unsupported, since gRPC cannot express them."""
    with pytest.raises(GatewayError, match=sentence) as caught:
        infer_request_of_rest(body, head_bytes, "m", "")
    assert caught.value.kind is ErrorKind.UNSUPPORTED
