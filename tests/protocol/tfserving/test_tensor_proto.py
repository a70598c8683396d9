"""Reading and writing TensorFlow's TensorProto, against messages that TensorFlow wrote (`vectors`)."""

import pytest
from hypothesis import given, settings

from gateway.protocol.conversion.tensors import RawTensor
from gateway.protocol.datatypes import DATATYPES
from gateway.protocol.tfserving import rpcs
from gateway.protocol.tfserving.messages import SCHEMA, message, number_of, of_name, of_number, parse
from tests.protocol.conversion import inferences
from tests.protocol.tfserving.vectors import SCHEMAS, TENSORS


def read(data: bytes) -> tuple[str, tuple[int, ...], bytes]:
    found = rpcs.read("x", data)
    return found.datatype, found.shape, bytes(found.raw)


def write(datatype: str, shape: tuple[int, ...], raw: bytes) -> bytes:
    proto = message("TensorProto")()
    rpcs.fill(proto, RawTensor("x", datatype, shape, raw))
    data: bytes = proto.SerializeToString()
    return data


@pytest.mark.parametrize("line", [line for line in SCHEMA.split("\n") if line])
def test_our_schemas_are_part_of_theirs(line: str) -> None:
    """Each field of the bundled schemas has the number and type of the generated classes."""
    name, *fields = line.split()
    assert set(fields) <= set(SCHEMAS[name])
    assert message(name.rpartition(".")[2]).DESCRIPTOR.full_name == name


@pytest.mark.parametrize("datatype, shape, raw, proto", [row[1:] for row in TENSORS], ids=[row[0] for row in TENSORS])
def test_what_tensorflow_wrote_is_read_as_it_reads_it(
    datatype: str, shape: list[int], raw: bytes, proto: bytes
) -> None:
    """Typed fields, tensor_content and repeated last values decode to the same raw data as in TensorFlow."""
    assert read(proto) == (datatype, tuple(shape), raw)


WRITTEN = [row for row in TENSORS if row[0].endswith("typed" if row[1] == "BYTES" else "tensor_content")]


@pytest.mark.parametrize("datatype, shape, raw, proto", [row[1:] for row in WRITTEN], ids=[row[1] for row in WRITTEN])
def test_tensors_are_written_as_tensorflow_writes_them(
    datatype: str, shape: list[int], raw: bytes, proto: bytes
) -> None:
    """Numbers are written as `tensor_content` and texts in their field, byte for byte as TensorFlow does."""
    assert len(WRITTEN) == len(DATATYPES)
    assert write(datatype, tuple(shape), raw) == proto


@settings(max_examples=200, deadline=None)
@given(inferences.tensors())
def test_nothing_is_lost_on_the_way_to_a_tensor_proto_and_back(tensor: inferences.Tensor) -> None:
    """Tensors of every datatype survive a round trip bit for bit."""
    shape = tuple(tensor.shape)
    assert read(write(tensor.datatype, shape, tensor.raw)) == (tensor.datatype, shape, tensor.raw)


def test_every_datatype_of_v2_has_a_number() -> None:
    """V2's datatypes convert to TensorFlow's numbers and back, and from TensorFlow's names."""
    assert [of_number(number_of(datatype)) for datatype in DATATYPES] == list(DATATYPES)
    assert [of_name(name) for name in ("DT_FLOAT", "DT_HALF", "DT_BFLOAT16", "DT_STRING", "DT_UINT16", "DT_INT8")] == [
        *("FP32", "FP16", "BF16", "BYTES", "UINT16", "INT8")
    ]
    assert (of_name("DT_COMPLEX64"), of_number(8), of_number(101)) == ("DT_COMPLEX64", "DT_COMPLEX64", "DT_101")
    with pytest.raises(ValueError, match="which TensorFlow does not have"):
        number_of("DT_COMPLEX64")


def proto(**fields: object) -> bytes:
    made = message("TensorProto")(**fields)
    made.tensor_shape.SetInParent()
    data: bytes = made.SerializeToString()
    return data


def shape(*axes: int, unknown_rank: bool = False) -> dict[str, object]:
    return {"dim": [{"size": axis} for axis in axes], "unknown_rank": unknown_rank}


@pytest.mark.parametrize(
    "data, text",
    [
        (b"\x0a\xff", "malformed"),
        (b"\x08\x01\x12\x02\xff\xff", "TensorProto"),
        (proto(dtype=8), "DT_COMPLEX64, which V2 does not have"),
        (proto(dtype=0), "DT_INVALID, which V2 does not have"),
        (proto(dtype=1, tensor_shape=shape(unknown_rank=True)), "its shape is not told"),
        (proto(dtype=1, tensor_shape=shape(-1)), "its shape"),
        (
            proto(dtype=1, tensor_shape=shape(2), tensor_content=b"1234567"),
            "7 bytes of data are not 2 elements of FP32",
        ),
        (proto(dtype=1, tensor_shape=shape(1), float_val=[1.0, 2.0]), "8 bytes of data are not 1 elements of FP32"),
        (proto(dtype=1, tensor_shape=shape(2**40), float_val=[1.0]), "4 bytes of data are not"),
        (proto(dtype=1, tensor_shape=shape(*[2**40] * 9)), "more than"),
        (proto(dtype=1, tensor_shape=shape(*[1] * 65), float_val=[1.0]), "up to 64 whole numbers"),
        (proto(dtype=7, tensor_shape=shape(1), string_val=[b"a", b"b"]), "2 texts are not 1"),
        (proto(dtype=7, tensor_shape=shape(2**40), string_val=[b"a"]), "1 texts are not"),
        (proto(dtype=7, tensor_shape=shape(2), tensor_content=b"\x01"), "lengths of its texts are malformed"),
        (proto(dtype=7, tensor_shape=shape(2**40), tensor_content=b"\x01"), "lengths of its texts are malformed"),
        (proto(dtype=7, tensor_shape=shape(2), tensor_content=b"\x01\x01a"), "3 bytes of data are not 2 texts"),
    ],
)
def test_malformed_tensors(data: bytes, text: str) -> None:
    """A malformed tensor raises a ValueError, and a small one with a huge shape allocates no memory for it."""
    with pytest.raises(ValueError, match=text):
        read(data)


@pytest.mark.parametrize(
    "datatype, shape, raw, text",
    [
        ("FP32", (2,), b"1234", "4 bytes of data are not 2 elements of FP32"),
        ("FP32", (-1,), b"", "whole numbers"),
        ("BYTES", (2,), b"\x01\0\0\0a", "5 bytes of data are not 2 elements of BYTES"),
        ("FP8", (1,), b"1", "datatype is 'FP8'"),
    ],
)
def test_tensors_that_cannot_be_written(datatype: str, shape: tuple[int, ...], raw: bytes, text: str) -> None:
    """Data that does not fit the shape is rejected."""
    with pytest.raises(ValueError, match=text):
        write(datatype, shape, raw)


def test_messages_that_are_malformed() -> None:
    """A malformed message raises a ValueError with the message's full name; an unknown type raises a KeyError."""
    with pytest.raises(ValueError, match=r"the message is no tensorflow\.serving\.PredictResponse"):
        parse("PredictResponse", b"\x12\xff")
    with pytest.raises(KeyError):
        message("Nothing")
