"""Responses as REST bodies, compared by their bytes."""

import struct
from typing import NamedTuple

import pytest

from engines.core.errors import EngineError
from engines.core.messages import InferResponse, SharedMemory, TensorData
from engines.host.rest.generate import read_generate, write_generate
from engines.host.rest.requests import ALL_IN_BINARY, ALL_IN_JSON, Forms
from engines.host.rest.responses import write_infer
from gateway.protocol.conversion.tensors import join_elements
from tests.engines.host.fake_service import FakeService

MODELS = FakeService().models
NAMED = b'"model_name":"adder","model_version":"1"'
SUM = TensorData("sum", "INT32", (1, 2), struct.pack("<2i", 11, -22))


class Body(NamedTuple):
    data: bytes
    head_bytes: int | None


def written(*outputs, id="", forms=ALL_IN_JSON, **parameters):
    pieces, head_bytes = write_infer(MODELS["adder"], id, InferResponse(outputs, parameters), forms)
    return Body(b"".join(pieces), head_bytes)


def test_json():
    """Triton's members, in its order."""
    assert written(SUM, id='"7"\n', b=True, d=5.0, s="é") == Body(
        b'{"id":"\\"7\\"\\n",' + NAMED + ',"parameters":{"b":true,"d":5.0,"s":"é"},"outputs":['.encode()
        + b'{"name":"sum","datatype":"INT32","shape":[1,2],"data":[11,-22]}]}',
        None,
    )  # fmt: skip


def test_binary():
    """Raw tensors follow the JSON in order, with the JSON's length if there are any bytes."""
    outputs = (SUM, TensorData("view", "UINT8", (2,), memoryview(b"xy")), TensorData("none", "FP32", (0,), b""))
    head = (
        b"{"
        + NAMED
        + b',"outputs":[{"name":"sum","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},'
        b'{"name":"view","datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":2}},'
        b'{"name":"none","datatype":"FP32","shape":[0],"parameters":{"binary_data_size":0}}]}'
    )
    assert written(*outputs, forms=ALL_IN_BINARY) == Body(head + SUM.data + b"xy", len(head))
    assert written(outputs[2], forms=ALL_IN_BINARY).head_bytes is None


def test_forms_by_output():
    """Each output has its own form: binary, JSON, classes, or shared memory."""
    forms = Forms(is_binary={"sum": True}, classes={"top": 1})
    top = TensorData("top", "INT32", (1, 2), struct.pack("<2i", 5, 6))
    memory = TensorData("memory", "INT32", (1, 2), SharedMemory("/r", 0, 8))
    body = written(SUM, top, memory, forms=forms)
    assert body.data[: body.head_bytes].endswith(
        b'{"name":"top","datatype":"BYTES","shape":[1,1],"data":["6:1"]},'
        b'{"name":"memory","datatype":"INT32","shape":[1,2]}]}'
    )
    assert body.data[body.head_bytes :] == SUM.data


@pytest.mark.parametrize(
    ("datatype", "shape", "raw", "data"),
    [
        ("BOOL", (2,), b"\1\0", b"[true,false]"),
        ("INT8", (2,), b"\xff\1", b"[-1,1]"),
        ("UINT64", (1,), b"\xff" * 8, b"[18446744073709551615]"),
        ("FP32", (2,), struct.pack("<2f", 0.1, 3), b"[0.10000000149011612,3.0]"),
        ("FP32", (3,), struct.pack("<3f", float("nan"), float("inf"), float("-inf")), b"[NaN,Infinity,-Infinity]"),
        ("FP64", (1,), struct.pack("<d", 1e-7), b"[1e-7]"),
        ("BYTES", (2,), join_elements([b'a"\x01', b"\xff"]), b'["a\\"\\u0001","\xff"]'),
        ("INT32", (0,), b"", b"[]"),
        ("INT32", (), b"\5\0\0\0", b"[5]"),
    ],
)
def test_values_of_each_datatype(datatype, shape, raw, data):
    """Values are written as RapidJSON writes them; texts are arbitrary bytes."""
    assert b'"data":' + data + b"}" in written(TensorData("x", datatype, shape, raw)).data


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (TensorData("x", "INT32", (2,), b"1234"), "output tensor shape does not match size of output for 'x'"),
        (
            TensorData("x", "BYTES", (2,), join_elements([b"a"])),
            "output tensor shape does not match size of output for 'x'",
        ),
        (
            TensorData("x", "FP16", (1,), b"12"),
            "sending FP16 data via JSON is not supported. Please use the binary data format for output",
        ),
    ],
)
def test_what_json_cannot_hold(output, message):
    """Triton's texts."""
    with pytest.raises(EngineError) as caught:
        written(output)
    assert caught.value.message == message


def test_generate_writes_sorted_members():
    """The response's own names come first, then parameters and outputs. A single value is written without an array."""
    outputs = (
        TensorData("text_output", "BYTES", (1,), join_elements(["é".encode()])),
        TensorData("numbers", "INT32", (2,), struct.pack("<2i", 1, 2)),
        TensorData("model_name", "BYTES", (1,), join_elements([b"not told"])),
    )
    response = InferResponse(outputs, {"a": 1.5, "id": "not told"})
    assert write_generate(MODELS["text"], "7", response) == (
        '{"a":1.5,"id":"7","model_name":"text","model_version":"1","numbers":[1,2],"text_output":"é"}'.encode()
    )


def read(body, model="repeater"):
    return read_generate(body, MODELS[model].metadata, model, "", {})


def test_generate_reads_tensors_and_parameters():
    """A key is a tensor if the model has an input of that name, otherwise a parameter, `id` included."""
    request = read(b'{"id":"i","text_input":"hi","n":3,"parameters":{"count":2,"stop":"x"}}')
    assert request.inputs == (
        TensorData("text_input", "BYTES", (1,), join_elements([b"hi"])),
        TensorData("count", "INT32", (1,), struct.pack("<i", 2)),
    )
    assert request.parameters == {"id": "i", "n": 3, "stop": "x"}
    assert request.id == "i"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "attempt to get members for non-object"),
        (b'{"id":5}', "Unable to parse 'id': attempt to access JSON non-string as string"),
        (b'{"text_input":5}', "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        (b'{"count":"y"}', "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (b'{"count":[1,2]}', "The schema can not convert input 'count' to tensor with proper shape"),
        (b'{"n":null}', "parameter 'n' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (
            b'{"parameters":[]}',
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            b'{"parameters":{"n":null}}',
            "Converting keyword: 'parameters': parameter 'n' has invalid type. It should be either 'int', 'bool', or "
            "'string'.",
        ),
        (b'{"count":1,"parameters":{"count":2}}', "Converting keyword: 'parameters': [request id: <id_unknown>] input "
         "'count' already exists in request"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_generate_body(body, message):
    """The texts are those of a real Triton (test_triton_parity)."""
    with pytest.raises(EngineError) as caught:
        read(body)
    assert caught.value.message == message
