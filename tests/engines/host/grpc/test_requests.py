"""ModelInferRequest messages as inferences."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferRequest, SharedMemory, TensorData, WantedOutput
from engines.host.grpc.requests import RequestReader
from gateway.protocol.conversion.tensors import join_elements
from tests.engines.host.fake_service import FakeRegions
from tests.engines.host.grpc.messages import adder, request, set_parameter, text

RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
    "'triton_' are allowed: triton_enable_empty_final_response"
)


def read(built, reader=None, *, forwarded=None, trace=None, version=""):
    data = built if isinstance(built, bytes) else built.SerializeToString()
    framed = b"\0\0\0\0\1" + data + b"next"
    sent = (reader or RequestReader())(framed, 5, 5 + len(data))
    return sent, sent.infer_request(FakeRegions(), forwarded or {}, trace or {}, version)


def plain(inferred):
    """With tensors as bytes, to compare by value."""

    def complete(data):
        return data if isinstance(data, SharedMemory) else bytes(data)

    return replace(inferred, inputs=tuple(replace(each, data=complete(each.data)) for each in inferred.inputs))


def test_a_message_by_its_bytes():
    """The wire format of grpc_service.proto, written out: names, an id, one raw tensor, one wanted output."""
    data = (
        b"\x0a\x05adder\x12\x012\x1a\x02id"
        b"\x2a\x0d\x0a\x01a\x12\x05INT32\x1a\x01\x02"
        b"\x32\x05\x0a\x03sum"
        b"\x3a\x08\x01\0\0\0\x02\0\0\0"
    )
    sent, inferred = read(data, version="2")
    assert (sent.model, sent.version, sent.id) == ("adder", "2", "id")
    assert plain(inferred) == InferRequest(
        "adder",
        "2",
        "id",
        inputs=(TensorData("a", "INT32", (2,), struct.pack("<2i", 1, 2)),),
        outputs=(WantedOutput("sum"),),
    )


def test_large_tensors_are_views_on_the_message():
    """Large tensors are views on the message; small ones are bytes, so that they do not keep the message alive."""
    built = request("identity_fp32")
    built.inputs.add(name="input", datatype="FP32", shape=[4096])
    built.raw_input_contents.append(bytes(16384))
    reader = RequestReader()
    for _ in range(10):  # by protobuf first, then by its layout
        _, inferred = read(built, reader)
        assert isinstance(inferred.inputs[0].data, memoryview)
    assert isinstance(read(adder())[1].inputs[0].data, bytes)


def test_parameters_become_fields():
    """Unknown names stay parameters, beside the forwarded headers."""
    parameters = {
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": False,
        "priority": ("uint64_param", 2**63),
        "timeout": 1500,
        "triton_enable_empty_final_response": True,
        "temperature": 0.5,
        "n": -3,
        "stop": "x",
        "echo": True,
    }
    sent, inferred = read(adder(parameters=parameters), forwarded={"x-forward-a": "b"}, trace={"traceparent": "00"})
    assert inferred.parameters == {"temperature": 0.5, "n": -3, "stop": "x", "echo": True, "x-forward-a": "b"}
    assert (inferred.sequence_id, inferred.sequence_start, inferred.sequence_end) == (7, True, False)
    assert (inferred.priority, inferred.timeout_us, inferred.trace) == (2**63, 1500, {"traceparent": "00"})
    assert sent.wants_empty_final


@pytest.mark.parametrize(("value", "read_as"), [("abc", "abc"), (-1, 2**64 - 1), (5, 5)])
def test_sequence_ids_are_texts_or_unsigned(value, read_as):
    """An int64_param is read as an unsigned number with the same bits."""
    assert read(adder(parameters={"sequence_id": value}))[1].sequence_id == read_as


@pytest.mark.parametrize(
    ("datatype", "field", "values", "raw"),
    [
        ("BOOL", "bool_contents", [True, False], b"\1\0"),
        ("INT8", "int_contents", [-1, 2], b"\xff\x02"),
        ("INT16", "int_contents", [-1, 2], b"\xff\xff\x02\0"),
        ("INT32", "int_contents", [-1, 2], struct.pack("<2i", -1, 2)),
        ("INT64", "int64_contents", [-1, 2], struct.pack("<2q", -1, 2)),
        ("UINT8", "uint_contents", [255, 2], b"\xff\x02"),
        ("UINT16", "uint_contents", [1, 2], b"\1\0\2\0"),
        ("UINT32", "uint_contents", [1, 2], struct.pack("<2I", 1, 2)),
        ("UINT64", "uint64_contents", [2**64 - 1, 2], struct.pack("<2Q", 2**64 - 1, 2)),
        ("FP32", "fp32_contents", [0.5, 2], struct.pack("<2f", 0.5, 2)),
        ("FP64", "fp64_contents", [0.1, 2], struct.pack("<2d", 0.1, 2)),
        ("BYTES", "bytes_contents", [b"a", b""], join_elements([b"a", b""])),
    ],
)
def test_typed_contents(datatype, field, values, raw):
    """Each datatype's field, as raw bytes."""
    built = request("any")
    tensor = built.inputs.add(name="x", datatype=datatype, shape=[2])
    getattr(tensor.contents, field).extend(values)
    assert bytes(read(built)[1].inputs[0].data) == raw


def with_parameters(target, **values):
    for name, value in values.items():
        set_parameter(target.parameters[name], value)


def test_shared_memory_is_resolved():
    """An input in shared memory has no raw contents; the service resolves the region."""
    built = adder(outputs=[])
    with_parameters(built.inputs[0], shared_memory_region="known", shared_memory_byte_size=8, shared_memory_offset=16)
    del built.raw_input_contents[0]
    output = built.outputs.add(name="sum")
    with_parameters(output, shared_memory_region="known", shared_memory_byte_size=8)
    built.outputs.add(name="diff")
    inferred = read(built)[1]
    assert inferred.inputs[0].data == SharedMemory("/known", 16, 8)
    assert bytes(inferred.inputs[1].data) == struct.pack("<2i", 10, 20)
    assert inferred.outputs == (WantedOutput("sum", 0, SharedMemory("/known", 0, 8)), WantedOutput("diff"))


def test_classes_are_wanted_by_output():
    """An output that is named twice is returned once."""
    built = adder()
    with_parameters(built.outputs.add(name="sum"), classification=3)
    built.outputs.add(name="sum")
    sent, inferred = read(built)
    assert inferred.outputs == (WantedOutput("sum", 3),)
    assert sent.classes == {"sum": 3}


def broken(change):
    built = adder()
    change(built)
    return built


def on_input(**values):
    return broken(lambda built: with_parameters(built.inputs[0], **values))


def on_output(**values):
    return broken(lambda built: with_parameters(built.outputs.add(name="sum"), **values))


def contents(field, values, datatype="INT32", *, keep_raw=False):
    def change(built):
        if not keep_raw:
            del built.raw_input_contents[:]
        built.inputs[0].datatype = datatype
        getattr(built.inputs[0].contents, field).extend(values)

    return broken(change)


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (adder(parameters={"triton_x": True}), RESERVED),
        (
            adder(parameters={"sequence_id": True}),
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
        ),
        (
            adder(parameters={"sequence_start": 1}),
            "invalid value type for 'sequence_start' parameter, expected bool_param.",
        ),
        (
            adder(parameters={"sequence_end": "x"}),
            "invalid value type for 'sequence_end' parameter, expected bool_param.",
        ),
        (
            adder(parameters={"priority": "x"}),
            "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
        ),
        (adder(parameters={"priority": -1}), "invalid value for 'priority', expected value >= 0."),
        (adder(parameters={"timeout": 0.5}), "invalid value type for 'timeout' parameter, expected int64_param."),
        (
            adder(parameters={"n": ("uint64_param", 1)}),
            "invalid value type for 'n' parameter, expected int64_param, bool_param, or string_param.",
        ),
        (
            adder(parameters={"triton_enable_empty_final_response": 1}),
            "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
        ),
        (
            contents("int_contents", [1], keep_raw=True),
            "contents field must not be specified when using raw_input_contents for 'a' for model 'adder'",
        ),
        (
            contents("fp32_contents", [1.0]),
            "unexpected explicit tensor data for input tensor 'a' for model 'adder' of type 'FP32', expected datatype "
            "'INT32'",
        ),
        (
            broken(lambda built: built.raw_input_contents.pop()),
            "unable to find data for input tensor 'b' for model 'adder' in request.",
        ),
        (
            on_input(shared_memory_region="known"),
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'a'",
        ),
        (
            on_input(shared_memory_offset=8),
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'a'",
        ),
        (
            on_input(shared_memory_region=5),
            "invalid value type for 'shared_memory_region' parameter for tensor 'a', expected string_param.",
        ),
        (
            on_input(shared_memory_region="nope", shared_memory_byte_size=8),
            "Unable to find shared memory region: 'nope'",
        ),
        (on_output(classification=0), "invalid value for 'classification' parameter, expected >= 0"),
        (
            on_output(classification="1"),
            "invalid value type for 'classification' parameter, expected int64_param",
        ),
        (
            on_output(classification=1, shared_memory_region="known", shared_memory_byte_size=8),
            "output can't set both 'shared_memory_region' and 'classification'",
        ),
    ],
)
def test_what_is_wrong_with_a_request(built, message):
    """The texts are those of a real Triton."""
    with pytest.raises(EngineError) as caught:
        read(built)
    assert caught.value.message == message


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x05ad", b"\x0a\x01\xff", b"\x3a\x05x"])
def test_what_is_no_message(data):
    """Bytes that are not a message fail with gRPC's own text."""
    with pytest.raises(EngineError) as caught:
        read(data)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INTERNAL, "Unable to parse request")


SMALL = st.integers(-(2**31), 2**31 - 1)


IDS = st.sampled_from(["", "a", "bb", "\xe9"])
CALLS = st.tuples(IDS, st.lists(SMALL, max_size=2), st.sampled_from(["", "1"]), st.booleans())


@settings(max_examples=25, deadline=None)
@given(st.lists(CALLS, min_size=1, max_size=8))
def test_layouts_change_nothing(calls):
    """A cached layout changes no result."""
    reader = RequestReader()
    for id, values, version, starts in calls * 6:
        built = adder(tuple(values), tuple(values), id=id, model_version=version)
        if starts:
            built.parameters["sequence_start"].bool_param = True
        sent, inferred = read(built, reader)
        fresh, expected = read(built)
        assert plain(inferred) == plain(expected)
        assert (sent.model, sent.version, sent.id) == (fresh.model, fresh.version, fresh.id)


def test_shared_memory_is_never_remembered():
    """Requests with shared memory are not cached by layout: the region may differ the next time."""
    built = text("text", "x")
    del built.raw_input_contents[:]
    with_parameters(built.inputs[0], shared_memory_region="known", shared_memory_byte_size=8)
    reader = RequestReader()
    for _ in range(10):
        assert read(built, reader)[1].inputs[0].data == SharedMemory("/known", 0, 8)
    assert not reader._layouts._layouts
