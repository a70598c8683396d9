"""Conversion of inference replies between gRPC and REST, member by member."""

from __future__ import annotations

import pytest

from gateway.protocol.conversion.infer import (
    OutputForm,
    WantedOutputs,
    infer_response_of_rest,
    rest_of_infer_response,
)
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import parse
from gateway.protocol.translator import RestBody
from tests.protocol.conversion.inferences import serialised

RESPONSE = "inference.ModelInferResponse"


def with_tensors(head: bytes, tensors: bytes) -> RestBody:
    return RestBody(head + tensors, len(head))


# gRPC response, REST reply

RESPONSES = {
    "as little as can be": (
        'model_name: "m" model_version: "1"',
        WantedOutputs(),
        RestBody(b'{"model_name":"m","model_version":"1","outputs":[]}'),
    ),
    "JSON, in Triton's order": (
        """model_name: "m" model_version: "1" id: "7" parameters {key: "p" value {int64_param: 1}}
        parameters {key: "triton_final_response" value {bool_param: true}}
        outputs {name: "o" datatype: "FP32" shape: [1, 2]} raw_output_contents: "\\000\\000\\200?"
          "\\000\\000\\300\\177" """,
        WantedOutputs(),
        RestBody(
            b'{"id":"7","model_name":"m","model_version":"1","parameters":{"p":1},"outputs":[{"name":"o",'
            b'"datatype":"FP32","shape":[1,2],"data":[1.0,NaN]}]}'
        ),
    ),
    "binary": (
        """model_name: "m" outputs {name: "o" datatype: "FP16" shape: 1} outputs {name: "e" datatype: "INT8" shape: 0}
        raw_output_contents: "ab" raw_output_contents: "" """,
        WantedOutputs(OutputForm.BINARY),
        with_tensors(
            b'{"model_name":"m","model_version":"","outputs":[{"name":"o","datatype":"FP16","shape":[1],"parameters":'
            b'{"binary_data_size":2}},{"name":"e","datatype":"INT8","shape":[0],"parameters":{"binary_data_size":0}}]}',
            b"ab",
        ),
    ),
    "binary without a byte, of which Triton does not tell": (
        'outputs {name: "e" datatype: "INT8" shape: 0} raw_output_contents: ""',
        WantedOutputs(by_name={"e": OutputForm.BINARY}),
        RestBody(
            b'{"model_name":"","model_version":"","outputs":[{"name":"e","datatype":"INT8","shape":[0],"parameters":'
            b'{"binary_data_size":0}}]}'
        ),
    ),
    "shared memory": (
        'outputs {name: "s" datatype: "INT8" shape: 4} raw_output_contents: ""',
        WantedOutputs(by_name={"s": OutputForm.SHARED_MEMORY}),
        RestBody(b'{"model_name":"","model_version":"","outputs":[{"name":"s","datatype":"INT8","shape":[4]}]}'),
    ),
    "every datatype of JSON": (
        """outputs {name: "b" datatype: "BOOL" shape: 3} raw_output_contents: "\\000\\001\\002"
        outputs {name: "u" datatype: "UINT64" shape: 1} raw_output_contents: "\\377\\377\\377\\377\\377\\377\\377\\377"
        outputs {name: "i" datatype: "INT16" shape: 1} raw_output_contents: "\\377\\377"
        outputs {name: "t" datatype: "BYTES" shape: 2} raw_output_contents:
          "\\000\\000\\000\\000\\002\\000\\000\\000\\"\\377" """,
        WantedOutputs(),
        RestBody(
            b'{"model_name":"","model_version":"","outputs":[{"name":"b","datatype":"BOOL","shape":[3],"data":'
            b'[false,true,true]},{"name":"u","datatype":"UINT64","shape":[1],"data":[18446744073709551615]},{"name":"i",'
            b'"datatype":"INT16","shape":[1],"data":[-1]},{"name":"t","datatype":"BYTES","shape":[2],"data":["","\\"\xff"]}]}'
        ),
    ),
    "typed contents, as other engines send them": (
        'outputs {name: "o" datatype: "INT64" shape: 2 contents {int64_contents: [1, -2]}}',
        WantedOutputs(),
        RestBody(
            b'{"model_name":"","model_version":"","outputs":[{"name":"o","datatype":"INT64","shape":[2],"data":[1,-2]}]}'
        ),
    ),
}


@pytest.mark.parametrize("text, wanted, body", RESPONSES.values(), ids=RESPONSES)
def test_a_grpc_response_as_triton_answers_by_rest(text: str, wanted: WantedOutputs, body: RestBody) -> None:
    """The REST reply has the same bytes as Triton's, with outputs in the requested form."""
    assert rest_of_infer_response(serialised(RESPONSE, text), wanted) == body


BAD_RESPONSES = {
    "FP16 in JSON": (
        'outputs {name: "o" datatype: "FP16" shape: 1} raw_output_contents: "ab"',
        ErrorKind.BAD_REQUEST,
        "sending FP16 data via JSON is not supported. Please use the binary data format for output",
    ),
    "too little data": (
        'outputs {name: "o" datatype: "INT32" shape: 2} raw_output_contents: "ab"',
        ErrorKind.UPSTREAM_PROTOCOL,
        "output 'o': 2 bytes of data are not 2 elements of INT32",
    ),
    "broken BYTES": (
        'outputs {name: "o" datatype: "BYTES" shape: 1} raw_output_contents: "\\005\\000\\000\\000ab"',
        ErrorKind.UPSTREAM_PROTOCOL,
        "output 'o': 6 bytes of data are not 1 elements of BYTES",
    ),
    "bytes behind the last element": (
        'outputs {name: "o" datatype: "BYTES" shape: 1} raw_output_contents: "\\001\\000\\000\\000abc"',
        ErrorKind.UPSTREAM_PROTOCOL,
        "output 'o': 7 bytes of data are not 1 elements of BYTES",
    ),
    "raw contents of another number": (
        'raw_output_contents: "ab"',
        ErrorKind.UPSTREAM_PROTOCOL,
        "the reply has 0 outputs, and raw contents of 1",
    ),
}


@pytest.mark.parametrize("text, kind, sentence", BAD_RESPONSES.values(), ids=BAD_RESPONSES)
def test_a_response_that_rest_cannot_tell_is_refused(text: str, kind: ErrorKind, sentence: str) -> None:
    """A malformed response is an upstream protocol error; an FP16 output requested as JSON is a bad request."""
    with pytest.raises(GatewayError, match=sentence) as caught:
        rest_of_infer_response(serialised(RESPONSE, text), WantedOutputs())
    assert caught.value.kind is kind


# REST reply, gRPC response

REPLIES = {
    "JSON": (
        b'{"id":"7","model_name":"m","model_version":"1","parameters":{"p":true,"big":18446744073709551615},"outputs":['
        b'{"name":"o","datatype":"FP32","shape":[1,2],"data":[1.0,NaN]}]}',
        b"",
        """id: "7" model_name: "m" model_version: "1" parameters {key: "p" value {bool_param: true}}
        parameters {key: "big" value {uint64_param: 18446744073709551615}}
        outputs {name: "o" datatype: "FP32" shape: [1, 2]} raw_output_contents: "\\000\\000\\200?"
          "\\000\\000\\300\\177" """,
    ),
    "binary, and shared memory with no bytes": (
        b'{"model_name":"m","outputs":[{"name":"a","datatype":"INT8","shape":[2],"parameters":{"binary_data_size":2}},'
        b'{"name":"s","datatype":"INT8","shape":[4]},'
        b'{"name":"b","datatype":"INT8","shape":[1],"parameters":{"binary_data_size":1}}]}',
        b"xyz",
        """model_name: "m" outputs {name: "a" datatype: "INT8" shape: 2} outputs {name: "s" datatype: "INT8" shape: 4}
        outputs {name: "b" datatype: "INT8" shape: 1}
        raw_output_contents: "xy" raw_output_contents: "" raw_output_contents: "z" """,
    ),
    "half precision in JSON, as other engines write it": (
        b'{"outputs":[{"name":"h","datatype":"FP16","shape":[2],"data":[1.0,-2]},'
        b'{"name":"b","datatype":"BF16","shape":[2],"data":[1.0,-2]}]}',
        b"",
        """outputs {name: "h" datatype: "FP16" shape: 2} raw_output_contents: "\\000<\\000\\300"
        outputs {name: "b" datatype: "BF16" shape: 2} raw_output_contents: "\\200?\\000\\300" """,
    ),
    "nulls and numbers, as other engines write them": (
        b'{"id":null,"model_name":"m","model_version":2,"parameters":null,"outputs":[{"name":"t","datatype":"BYTES",'
        b'"shape":[1],"parameters":{"content_type":"str","o":null},"data":["x"]}]}',
        b"",
        """model_name: "m" model_version: "2" outputs {name: "t" datatype: "BYTES" shape: 1
          parameters {key: "content_type" value {string_param: "str"}}}
        raw_output_contents: "\\001\\000\\000\\000x" """,
    ),
    "a parameter that gRPC has no type for": (
        b'{"parameters":{"headers":{"a":["b"]},"n":null},"outputs":[]}',
        b"",
        """parameters {key: "headers" value {string_param: "{\\"a\\":[\\"b\\"]}"}}
        parameters {key: "n" value {string_param: "null"}}""",
    ),
}


@pytest.mark.parametrize("head, tensors, text", REPLIES.values(), ids=REPLIES)
def test_a_rest_reply_as_grpc(head: bytes, tensors: bytes, text: str) -> None:
    """Every output becomes raw contents; members that Triton always writes may be missing or null."""
    assert repr(parse(RESPONSE, infer_response_of_rest(head + tensors, len(head)))) == repr(
        parse(RESPONSE, serialised(RESPONSE, text))
    )


BAD_REPLIES = [
    (b"<html>", None, "failed to parse the JSON"),
    (b'{"error":"x"}', None, "'outputs' is missing"),
    (
        b'{"outputs":[{"name":"o","datatype":"INT8","shape":[1],"data":[]}]}',
        None,
        "output 'o': its data has 0 elements",
    ),
    (b'{"outputs":[{"name":"o","datatype":"FP16","shape":[1],"data":[1e9]}]}', None, "output 'o': .* range of FP16"),
    (b'{"outputs":[]}x', 14, "unexpected additional data"),
    (b'{"outputs":[],"model_version":{}}', None, "'model_version' must be a string"),
]


@pytest.mark.parametrize("body, head_bytes, sentence", BAD_REPLIES)
def test_a_malformed_reply_is_the_engines_fault(body: bytes, head_bytes: int | None, sentence: str) -> None:
    """A malformed reply is an upstream protocol error that describes the problem."""
    with pytest.raises(GatewayError, match=sentence) as caught:
        infer_response_of_rest(body, head_bytes)
    assert caught.value.kind is ErrorKind.UPSTREAM_PROTOCOL
