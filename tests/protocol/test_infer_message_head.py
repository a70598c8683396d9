"""Reading the names and facts of an inference message, compared with protobuf's parser."""

import struct
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.infer_message_head import Names, NamesReader, facts_or_error, read_body_facts, read_names, renamed
from gateway.protocol.protobuf import message
from gateway.protocol.protobuf_wire import fields, write_varint
from gateway.protocol.v2_facts import BodyFacts, InputFacts

Request = message("inference.ModelInferRequest")
TEXT = st.sampled_from(["", "a", "model", "ä", "m" * 126, "m" * 128, "m" * 300])


def varint(number: int, more: int = 0) -> bytes:
    """A varint with `more` redundant bytes."""
    if not more:
        return write_varint(number)
    plain = bytearray(write_varint(number))
    plain[-1] |= 0x80
    return bytes(plain) + b"\x80" * (more - 1) + b"\0"


@st.composite
def text_fields(draw: st.DrawFn) -> bytes:
    """Text fields, some with tags or sizes in redundant bytes."""
    tag = draw(st.sampled_from([0x0A, 0x0A, 0x12, 0x1A])), draw(st.sampled_from([0, 0, 0, 1, 4]))
    text = draw(TEXT).encode()
    return varint(*tag) + varint(len(text), draw(st.sampled_from([0, 0, 0, 1, 5]))) + text


UNKNOWN = st.sampled_from(
    [
        *(b"\x08\x05", b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0d\0\0\0\0", b"\x11" + bytes(8)),  # kinds
        *(
            b"\x7a\x02ab",
            b"\xf8\xff\xff\xff\x0f\x01",
            b"\xfa\xff\xff\xff\x0f\x01x",
            b"\x79" + bytes(8),
            b"\x7d" + bytes(4),
        ),
        *(b"\x0b\x0c", b"\x7b\x0a\x05model\x12\x01v\x7c", b"\x7b\x7b\x08\x01\x0d\0\0\0\0\x09" + bytes(8) + b"\x7c\x7c"),
        b"\x7b" * 100 + b"\x7c" * 100,
    ]
)
TENSORS = st.sampled_from(
    [
        Request(inputs=[{"name": "in", "datatype": "FP32", "shape": [1, 2]}]).SerializeToString(),
        Request(raw_input_contents=[b"\x0a\x05other", bytes(300)]).SerializeToString(),
        Request(parameters={"p": {"int64_param": 5}}, outputs=[{"name": "out"}]).SerializeToString(),
    ]
)
WELL_FORMED = st.lists(st.one_of(text_fields(), text_fields(), UNKNOWN, TENSORS), max_size=6).map(b"".join)
MALFORMED = st.sampled_from(
    [
        *(b"\x02\x01a", b"\x00\x01", b"\x0e", b"\x0f", b"\x0c", b"\x0b", b"\x0b\x14", b"\x7b" * 101 + b"\x7c" * 101),
        *(
            b"\x0a",
            b"\x0a\x05a",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x08",
            b"\x08\x80",
            b"\x0d\0",
            b"\x09\0",
        ),
        *(b"\x08" + b"\xff" * 10 + b"\x01", b"\x8a\x80\x80\x80\x80\x00\x01a", b"\x8a\x80\x80\x80\x70\x01a", b"\x80"),
        *(b"\x0b\x0a\x0c", b"\x0b\x02\x01a\x0c", b"\x0b\x0e\x0c", b"\x2a\x80"),
    ]
)


def parsed(data: bytes) -> Any:
    """The message as protobuf parses it, or None if it is malformed."""
    made = Request()
    try:
        made.ParseFromString(data)
    except DecodeError:
        return None
    return made


@settings(max_examples=300, deadline=None)
@given(WELL_FORMED, st.binary(max_size=5), st.binary(max_size=5))
def test_names_are_those_that_protobuf_reads(data: bytes, before: bytes, behind: bytes) -> None:
    """For late, repeated and unknown fields, groups and redundant varints, the names equal protobuf's; bytes around
    the message in its buffer are ignored."""
    request = parsed(data)
    names = read_names(before + data + behind, len(before), len(before) + len(data))
    assert request is not None
    assert names.model.decode() == request.model_name
    assert names.version.decode() == request.model_version
    assert names.id.decode() == request.id
    for start, stop in names.spans:
        assert {field.name for field, _ in parsed(data[start:stop]).ListFields()} <= {"model_name"}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(text_fields(), UNKNOWN, TENSORS, MALFORMED, st.binary(max_size=8)), max_size=5).map(b"".join))
def test_what_we_refuse_protobuf_refuses(data: bytes) -> None:
    """Every message that the reader rejects is malformed for protobuf too; names in all others are the same."""
    request = parsed(data)
    try:
        names = read_names(data, 0, len(data))
    except GatewayError as error:
        assert error.kind is ErrorKind.BAD_REQUEST
        assert request is None
        return
    if request is not None:
        assert (names.model.decode(), names.version.decode()) == (request.model_name, request.model_version)


@pytest.mark.parametrize(
    "data", [b"\x02\x01a", b"\x0b", b"\x0c", b"\x0b\x14", b"\x0a\x05a", b"\x08", b"\x0e", b"\x00\x01"]
)
def test_malformed_messages(data: bytes) -> None:
    """A malformed message is rejected as no protobuf message."""
    assert parsed(data) is None
    for broken in (data, b"\x0a\x01m" + data):
        with pytest.raises(GatewayError, match="no protobuf message"):
            read_names(broken, 0, len(broken))
        with pytest.raises(GatewayError, match="no protobuf message"):
            list(fields(broken))


@settings(max_examples=200, deadline=None)
@given(WELL_FORMED, TEXT)
def test_renamed_is_what_protobuf_would_set(data: bytes, model: str) -> None:
    """Renaming changes the model name and nothing else."""
    expected = parsed(data)
    expected.model_name = model
    names = read_names(data, 0, len(data))
    found = renamed(data, names, model.encode())
    assert parsed(found) == expected
    again = read_names(found, 0, len(found))
    assert again.model == model.encode() and len(again.spans) == 1


def feed_all(reader: NamesReader, pieces: list[bytes]) -> Names:
    for piece in pieces:
        reader.feed(piece)
    return reader.settle()


@settings(max_examples=100, deadline=None)
@given(WELL_FORMED)
@example(Request(model_name="m", raw_input_contents=[bytes(700)]).SerializeToString() + b"\x12\x01v")
def test_a_message_that_passes_names_the_same(data: bytes) -> None:
    """The names and their positions do not depend on how the message is split into chunks."""
    assume(len(data) < 800)
    whole = read_names(data, 0, len(data))
    expected = Names(whole.model, whole.version, b"", whole.spans)
    assert feed_all(NamesReader(), [data[at : at + 1] for at in range(len(data))]) == expected
    for at in range(len(data) + 1):
        assert feed_all(NamesReader(), [data[:at], data[at:]]) == expected


def test_when_names_may_be_acted_on() -> None:
    """Names are settled once the model name has arrived and tensors begin; a different name after that is rejected."""
    head = Request(model_name="m", model_version="1", id="i").SerializeToString()
    tensors = Request(raw_input_contents=[bytes(100)]).SerializeToString()
    reader = NamesReader()
    reader.feed(head)
    assert not reader.may_settle
    reader.feed(tensors[:3])
    assert reader.may_settle
    assert reader.settle() == Names(b"m", b"1", b"", ((0, 3),))
    reader.feed(tensors[3:] + tensors)
    for late in (b"\x0a\x01n", b"\x12\x012"):
        again = NamesReader()
        again.feed(head + tensors)
        again.settle()
        with pytest.raises(GatewayError, match="put it first"):
            again.feed(late)


def test_a_message_without_a_name_is_not_acted_on() -> None:
    """Tensors before the model name do not settle the names."""
    reader = NamesReader()
    reader.feed(Request(raw_input_contents=[bytes(100)]).SerializeToString())
    assert not reader.may_settle
    reader.feed(b"\x0a\x01m" + Request(raw_input_contents=[b"x"]).SerializeToString())
    assert reader.may_settle and reader.settle().model == b"m"


@pytest.mark.parametrize(
    "data", [b"\x0a\xff\xff\x7f", b"\x12\x81\x80\x04", b"\x7b" * 101, b"\x0c", b"\x08" + b"\xff" * 11]
)
def test_what_a_passing_message_may_not_hold(data: bytes) -> None:
    """Overlong names, deeply nested groups and malformed fields are rejected, so that memory stays bounded."""
    reader = NamesReader()
    with pytest.raises(GatewayError) as refused:
        for at in range(0, len(data), 1000):
            reader.feed(data[at : at + 1000])
    assert refused.value.kind is ErrorKind.BAD_REQUEST


def test_a_long_group_is_read_once() -> None:
    """The content of a group is neither buffered nor read again with each chunk."""
    reader = NamesReader()
    reader.feed(b"\x0a\x01m\x7b")
    for _ in range(2_000):
        reader.feed(b"\x08\x01\x0a")
        assert reader._buffer == b"\x0a"
        reader.feed(b"\x01n")
    reader.feed(b"\x7c\x12\x01v")
    assert reader.settle() == Names(b"m", b"v", b"", ((0, 3),))


def test_a_long_tensor_is_stepped_over() -> None:
    """A tensor's bytes are skipped without buffering."""
    reader = NamesReader()
    reader.feed(b"\x0a\x01m\x3a" + write_varint(1 << 26))
    piece = bytes(1 << 16)
    for _ in range(1 << 10):
        reader.feed(piece)
        assert reader._buffer == b""
    reader.feed(b"\x12\x01")
    assert reader._buffer == b"\x12\x01"
    reader.feed(b"v")
    assert reader.settle() == Names(b"m", b"v", b"", ((0, 3),))


PARAMETERS = st.dictionaries(
    st.sampled_from(["a", "b", "shared_memory_byte_size", "ä"]),
    st.one_of(
        st.booleans().map(lambda value: {"bool_param": value}),
        st.integers(-(2**63), 2**63 - 1).map(lambda value: {"int64_param": value}),
        st.integers(0, 2**64 - 1).map(lambda value: {"uint64_param": value}),
        st.floats(allow_nan=False).map(lambda value: {"double_param": value}),
        TEXT.map(lambda value: {"string_param": value}),
        st.just({}),
    ),
    max_size=3,
)
INPUTS = st.lists(
    st.fixed_dictionaries(
        {
            "name": TEXT,
            "datatype": st.sampled_from(["FP32", "BYTES", "INT64", "BF16", "", "UNKNOWN"]),
            "shape": st.lists(st.integers(-1, 40), max_size=3),
        },
        optional={
            "parameters": PARAMETERS,
            "contents": st.sampled_from([{}, {"bytes_contents": [b"ab", b"", b"c"]}, {"fp32_contents": [1.0, 2.0]}]),
        },
    ),
    max_size=3,
)
ELEMENT_BYTES = {"FP32": 4, "INT64": 8, "BF16": 2}


def parameters_of(made: Any) -> dict[str, object]:
    chosen = {key: value.WhichOneof("parameter_choice") for key, value in made.items()}
    return {key: getattr(made[key], name) for key, name in chosen.items() if name is not None}


def facts_of(request: Any) -> BodyFacts:
    """The facts for rules, computed from protobuf's parsed message."""
    raw = iter(request.raw_input_contents)
    inputs = []
    for tensor in request.inputs:
        declared = parameters_of(tensor.parameters).get("shared_memory_byte_size")
        shape = tuple(tensor.shape)
        if isinstance(declared, int):
            size = declared
        elif not tensor.HasField("contents"):
            size = len(next(raw, b""))
        elif tensor.datatype in ELEMENT_BYTES:
            size = ELEMENT_BYTES[tensor.datatype]
            for axis in shape:
                size *= axis
        else:
            size = sum(map(len, tensor.contents.bytes_contents))
        inputs.append(InputFacts(tensor.name, tensor.datatype, shape, size))
    return BodyFacts(parameters_of(request.parameters), tuple(inputs))  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(PARAMETERS, INPUTS, st.lists(st.binary(max_size=20), max_size=3), st.lists(UNKNOWN, max_size=2).map(b"".join))
def test_facts_are_those_that_protobuf_reads(
    parameters: dict[str, Any], inputs: list[dict[str, Any]], raw: list[bytes], more: bytes
) -> None:
    """The parameters and the inputs' names, datatypes, shapes and sizes equal protobuf's."""
    request = Request(model_name="m", parameters=parameters, inputs=inputs, raw_input_contents=raw)
    assert read_body_facts(more + request.SerializeToString()) == facts_of(request)


TWICE = (
    b"\x22" + bytes([12]) + b"\x0a\x01p\x12\x03\x1a\x01a\x12\x02\x10\x07"
)  # one parameter whose value is split in two
UNPACKED = b"\x2a\x06\x18\x02\x18\x03\x1a\x00"
ODD_KINDS = b"\x22\x0e\x09" + bytes(8) + b"\x0a\x01p\x12\x00"
PLAIN_DOUBLE = b"\x22\x0e\x0a\x01p\x12\x09\x21" + struct.pack("<d", 1.5)


@pytest.mark.parametrize("data", [TWICE, UNPACKED, ODD_KINDS, PLAIN_DOUBLE])
def test_facts_in_odd_shapes(data: bytes) -> None:
    """Messages split in two, unpacked numbers and fields of another wire type are read as protobuf reads them."""
    assert read_body_facts(data) == facts_of(parsed(data))


@pytest.mark.parametrize(
    "data", [b"\x2a\x03\x1a\x01\x80", b"\x2a\x02\x1a\x05", b"\x22\x01\x0a", b"\x22\x03\x12\x01\x08", b"\x2a"]
)
def test_malformed_facts(data: bytes) -> None:
    """A malformed message has an error in place of facts; `facts_or_error` does not raise it."""
    assert parsed(data) is None
    with pytest.raises(GatewayError) as caught:
        read_body_facts(data)
    found = facts_or_error(data)
    assert found.error is not None
    assert found.error.message == caught.value.message


@pytest.mark.parametrize(
    "message, kind",
    [
        (b"\x0a\x01m" * 17, ErrorKind.BAD_REQUEST),  # joining the places of names took time by their square
        (b"\x0a\x01m" + b"\x2a\0" * 40_000, ErrorKind.BODY_TOO_LARGE),
        (b"\x0a\x01m" + b"\x22\0" * 40_000, ErrorKind.BODY_TOO_LARGE),
    ],
)
def test_a_message_of_too_many_fields_is_refused(message: bytes, kind: ErrorKind) -> None:
    """A message names its model a few times at the most, and a long one has few fields, read whole or as it comes."""
    for read in (lambda: read_names(message, 0, len(message)), lambda: NamesReader().feed(message)):
        with pytest.raises(GatewayError) as refused:
            read()
        assert refused.value.kind is kind


def test_a_tensor_of_too_many_axes_has_no_facts() -> None:
    """The axes of a shape are read up to the most that tensors have."""
    shape = Request(model_name="m", inputs=[{"name": "x", "datatype": "BYTES", "shape": [1] * 100_000}])
    assert facts_or_error(shape.SerializeToString()).error is not None


def field(tag: int, value: bytes) -> bytes:
    return bytes([tag]) + write_varint(len(value)) + value


TEXTS = field(0x0A, b"x") + field(0x12, b"BYTES") + b"\x18\x01"
INNER = {
    "fields of a parameter": field(0x22, b"\x0a\0" * 20_000),
    "values of a parameter": field(0x22, b"\x12\0" * 20_000),
    "fields of a parameter's value": field(0x22, field(0x12, b"\x08\1" * 20_000)),
    "fields of a tensor": field(0x2A, b"\x0a\0" * 20_000),
    "fields of tensors": field(0x2A, b"\x0a\0" * 4_000) * 5,
    "fields of a tensor's parameter": field(0x2A, field(0x22, b"\x0a\0" * 20_000)),
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_facts_of_too_many_fields_are_refused(inner: bytes) -> None:
    """Rules read a bounded number of fields of a message, at any depth."""
    error = facts_or_error(field(0x0A, b"m") + inner).error
    assert error is not None and error.kind is ErrorKind.BODY_TOO_LARGE


@pytest.mark.parametrize(("count", "length"), [(16_000, 2), (100_000, 2), (100_000, 0), (3, 100_000)])
def test_texts_of_a_tensor_are_counted_up_to_a_bound(count: int, length: int) -> None:
    """A tensor of many texts has the bytes of its first texts, and all bytes of the rest."""
    message = field(0x0A, b"m") + field(0x2A, TEXTS + field(0x2A, field(0x42, b"x" * length) * count))
    (found,) = read_body_facts(message).inputs
    behind = max(count - 16_379, 0)  # six fields before them
    assert abs(found.num_bytes - (count * length + 2 * behind)) <= 20
