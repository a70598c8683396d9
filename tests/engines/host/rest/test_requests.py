"""Infer bodies as inferences."""

import json
import struct

import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferRequest, SharedMemory, TensorData, WantedOutput
from engines.host.rest.requests import read_infer, read_raw_infer
from gateway.protocol.conversion.tensors import join_elements
from tests.engines.host.fake_service import FakeModel, FakeRegions

ONLY_ONE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)
NO_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NO_STRING = "attempt to access JSON non-string as string"
NO_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NO_MEMBER = "attempt to access non-existing object member"
NO_ARRAY = "attempt to access JSON non-array as array"
TRUE_SHAPE = "Unable to parse 'data': Shape does not match true shape of 'data' field"


def read(content, tail=b""):
    head = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_infer(head + tail, len(head), "adder", "", FakeRegions(), {}, {})


def tensor(**members):
    result = {"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}
    result |= members
    return {key: value for key, value in result.items() if value is not ...}


def one(**members):
    return {"inputs": [tensor(**members)]}


def with_parameters(**parameters):
    return {**one(), "parameters": parameters}


def with_output(**parameters):
    return {**one(), "outputs": [{"name": "sum", "parameters": parameters}]}


def binary(size):
    return one(data=..., parameters={"binary_data_size": size})


def test_json_and_binary_tensors_in_one_body():
    """In the order of their declaration; large tensors are views on the body."""
    content = {
        "id": "7",
        "inputs": [
            tensor(name="small", data=..., parameters={"binary_data_size": 8}),
            tensor(name="json"),
            tensor(name="large", shape=[2000], data=..., parameters={"binary_data_size": 8000}),
            tensor(name="none", shape=[0], data=..., parameters={"binary_data_size": 0}),
        ],
    }
    request, forms = read(content, b"12345678" + bytes(8000))
    assert [(each.name, bytes(each.data)) for each in request.inputs] == [
        ("small", b"12345678"),
        ("json", struct.pack("<2i", 1, 2)),
        ("large", bytes(8000)),
        ("none", b""),
    ]
    assert isinstance(request.inputs[2].data, memoryview)
    assert request.id == "7"
    assert not forms.binary("sum")


@pytest.mark.parametrize(
    ("datatype", "values", "raw"),
    [
        ("INT32", [[1, -2]], struct.pack("<2i", 1, -2)),
        ("INT32", [2**32 + 5, -1], struct.pack("<2i", 5, -1)),
        ("INT8", [-1, 300], b"\xff\x2c"),
        ("UINT8", [255, 256], b"\xff\x00"),
        ("UINT64", [2**64 - 1, 0], struct.pack("<2Q", 2**64 - 1, 0)),
        ("FP32", [1, 0.5], struct.pack("<2f", 1, 0.5)),
        ("FP64", [[1], [0.1]], struct.pack("<2d", 1, 0.1)),
        ("BOOL", [True, False], b"\1\0"),
        ("BYTES", ["é", ""], join_elements(["é".encode(), b""])),
        ("BYTES", ["of", "any", "number"], join_elements([b"of", b"any", b"number"])),
    ],
)
def test_values_of_each_datatype(datatype, values, raw):
    """Nested or flat; integers keep their low bytes, as Triton has it."""
    assert read(one(datatype=datatype, data=values))[0].inputs[0].data == raw


@pytest.mark.parametrize("shape", [[0, 2], []])
def test_values_of_no_elements_are_not_looked_at(shape):
    """A shape without axes has none too, in JSON."""
    assert read(one(shape=shape))[0].inputs == (TensorData("a", "INT32", tuple(shape), b""),)


def test_parameters_become_fields():
    """Unknown names stay parameters."""
    request, forms = read(
        with_parameters(
            sequence_id="s",
            sequence_start=True,
            sequence_end=True,
            priority=2,
            timeout=9,
            binary_data_output=True,
            temperature=0.5,
            n=3,
            big=2**63,
            stop="x",
            echo=False,
        )
    )
    assert request.parameters == {"temperature": 0.5, "n": 3, "big": float(2**63), "stop": "x", "echo": False}
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == ("s", True, True)
    assert (request.priority, request.timeout_us) == (2, 9)
    assert forms.binary("whatever")
    assert read(with_parameters(sequence_id=2**64 - 1))[0].sequence_id == 2**64 - 1


def test_outputs_and_their_forms():
    """Each output has its own parameters; of two with one name the first counts."""
    content = {
        **with_parameters(binary_data_output=True),
        "outputs": [
            {"name": "json"},
            {"name": "binary", "parameters": {"binary_data": True}},
            {"name": "classes", "parameters": {"classification": 2}},
            {"name": "memory", "parameters": {"shared_memory_region": "known", "shared_memory_byte_size": 8}},
            {"name": "json", "parameters": {"binary_data": True}},
        ],
    }
    request, forms = read(content)
    assert request.outputs == (
        WantedOutput("json"),
        WantedOutput("binary"),
        WantedOutput("classes", 2),
        WantedOutput("memory", 0, SharedMemory("/known", 0, 8)),
    )
    assert [forms.binary(name) for name in ("json", "binary", "unnamed")] == [False, True, True]
    assert forms.classes == {"classes": 2}


def test_an_input_in_shared_memory():
    """The service resolves the input's region."""
    parameters = {"shared_memory_region": "known", "shared_memory_offset": 8, "shared_memory_byte_size": 8}
    assert read(one(data=..., parameters=parameters))[0].inputs[0].data == SharedMemory("/known", 8, 8)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ([], ErrorCode.INTERNAL, f"Unable to parse 'inputs': {NO_MEMBER} 'inputs'"),
        ({"inputs": {}}, ErrorCode.INTERNAL, f"Unable to parse 'inputs': {NO_ARRAY}"),
        ({**one(), "id": 7}, ErrorCode.INTERNAL, f"Unable to parse 'id': {NO_STRING}"),
        ({"inputs": [{}]}, ErrorCode.INVALID_ARG, f"{ONLY_ONE} no field is set"),
        (one(parameters={"binary_data_size": 8}), ErrorCode.INVALID_ARG, f"{ONLY_ONE} set 'data' 'binary_data_size'"),
        (
            one(name=...),
            ErrorCode.INTERNAL,
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (one(datatype=3), ErrorCode.INTERNAL, f"Unable to parse 'datatype': {NO_STRING}"),
        (one(shape=None), ErrorCode.INTERNAL, f"Unable to parse 'shape': {NO_ARRAY}"),
        (one(shape=[1, -2]), ErrorCode.INTERNAL, f"Unable to parse 'shape': {NO_UNSIGNED}"),
        (one(data=5), ErrorCode.INTERNAL, f"Unable to parse 'data': {NO_ARRAY}"),
        (one(data=[1]), ErrorCode.INTERNAL, TRUE_SHAPE),
        (one(data=[1, 2, "x"]), ErrorCode.INTERNAL, TRUE_SHAPE),
        (
            one(data=[1, "x", 3]),
            ErrorCode.INTERNAL,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        (one(datatype="UINT8", data=[1, -1]), ErrorCode.INTERNAL, f"Unable to parse 'data': {NO_UNSIGNED}"),
        (
            one(datatype="FP32", data=[1, None]),
            ErrorCode.INTERNAL,
            "Unable to parse 'data': attempt to access JSON non-number as double",
        ),
        (one(datatype="BOOL", data=[1, 0]), ErrorCode.INTERNAL, f"Unable to parse 'data': {NO_BOOLEAN}"),
        (one(datatype="BYTES", data=["a", 1]), ErrorCode.INTERNAL, f"Unable to parse JSON bytes array: {NO_STRING}"),
        (one(datatype="INT33"), ErrorCode.INVALID_ARG, "invalid datatype for input a"),
        (
            one(datatype="FP16"),
            ErrorCode.INVALID_ARG,
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input a",
        ),
        (
            binary(3),
            ErrorCode.INVALID_ARG,
            "unexpected size for input 'a', expecting 3 additional bytes for model 'adder'",
        ),
        (binary(-1), ErrorCode.INTERNAL, f"Unable to parse 'binary_data_size': {NO_UNSIGNED}"),
        (
            {**one(), "parameters": []},
            ErrorCode.INTERNAL,
            "failed to get request params.: attempt to get members for non-object",
        ),
        (
            with_parameters(triton_x=1),
            ErrorCode.INVALID_ARG,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            with_parameters(n=None),
            ErrorCode.INVALID_ARG,
            "parameter 'n' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (with_parameters(sequence_id=-1), ErrorCode.INTERNAL, f"Unable to parse 'sequence_id': {NO_STRING}"),
        (with_parameters(sequence_start=1), ErrorCode.INTERNAL, f"Unable to parse 'sequence_start': {NO_BOOLEAN}"),
        (with_parameters(priority=-1), ErrorCode.INTERNAL, f"Unable to parse 'priority': {NO_UNSIGNED}"),
        ({**one(), "outputs": {}}, ErrorCode.INTERNAL, f"Unable to parse 'outputs': {NO_ARRAY}"),
        (with_output(classification="x"), ErrorCode.INTERNAL, f"Unable to set 'classification': {NO_UNSIGNED}"),
        (with_output(binary_data="x"), ErrorCode.INTERNAL, f"Unable to parse 'binary_data': {NO_BOOLEAN}"),
        (
            with_output(shared_memory_region="known", classification=1),
            ErrorCode.INVALID_ARG,
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            with_output(shared_memory_region="known", binary_data=True),
            ErrorCode.INVALID_ARG,
            "Output can't set both 'shared_memory_region' and 'binary_data'",
        ),
        (
            with_output(shared_memory_region="nope"),
            ErrorCode.NOT_FOUND,
            "Unable to find shared memory region: 'nope'",
        ),
    ],
)
def test_what_is_wrong_with_a_body(content, code, message):
    """The codes and texts are those of a real Triton (test_triton_parity)."""
    with pytest.raises(EngineError) as caught:
        read(content)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_bytes_behind_the_last_tensor():
    """Bytes after the last declared tensor are an error."""
    with pytest.raises(EngineError, match="unexpected additional input data for model 'adder'"):
        read(binary(2), b"123")


def model(*inputs, max_batch_size=0):
    return FakeModel("m", lambda call: None, inputs, (), max_batch_size=max_batch_size)


@pytest.mark.parametrize(
    ("served", "body", "expected"),
    [
        (model(("x", "FP32", (-1,))), bytes(12), TensorData("x", "FP32", (3,), bytes(12))),
        (model(("x", "FP32", (2, -1)), max_batch_size=4), bytes(16), TensorData("x", "FP32", (1, 2, 2), bytes(16))),
        (model(("x", "INT8", (4,))), b"abcd", TensorData("x", "INT8", (4,), b"abcd")),
        (model(("x", "BYTES", (1,))), b"hey", TensorData("x", "BYTES", (1,), b"\3\0\0\0hey")),
    ],
)
def test_raw_requests(served, body, expected):
    """The body is the only input's data; its shape is the configuration's, and outputs are binary."""
    request, forms = read_raw_infer(body, served, "", {}, {"traceparent": "00"})
    assert request == InferRequest("m", inputs=(expected,), trace={"traceparent": "00"})
    assert forms.binary("anything")


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (
            model(("x", "FP32", (1,)), ("y", "FP32", (1,))),
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
            "'m' model configuration",
        ),
        (
            model(("x", "FP32", (-1, -1))),
            "[request id: <id_unknown>] The shape of the raw input 'x' can not be deduced because there are more than "
            "one variable-sized dimension",
        ),
        (
            model(("x", "BYTES", (2,))),
            "[request id: <id_unknown>] For BYTE datatype raw input 'x', the model must have input shape [1]",
        ),
    ],
)
def test_raw_requests_that_no_configuration_explains(served, message):
    """Triton's texts (core `infer_request.cc`)."""
    with pytest.raises(EngineError) as caught:
        read_raw_infer(b"", served, "", {}, {})
    assert caught.value.message == message


def test_axes_without_end():
    """A shape with very many axes is refused at once: the product of the axes is bounded."""
    axes = b",".join([b"18446744073709551615"] * 200_000)
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%b],"data":[1]}]}' % axes
    with pytest.raises(EngineError, match="Shape does not match true shape of 'data' field"):
        read_infer(body, len(body), "m", "", None, {}, {})
