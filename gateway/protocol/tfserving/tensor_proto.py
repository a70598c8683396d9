"""A tensor in TensorFlow's protobuf.

Written with its data as `tensor_content`, which is V2's raw form, and with `string_val` where it is BYTES. Read in all
of its forms: fewer values than elements mean that the last one goes on, none at all means zeros.
Source: TensorFlow `core/framework/tensor.proto`; `core/framework/tensor.cc` (Tensor::FromProto).
"""

from __future__ import annotations

from array import array
from typing import Any

from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.tensors import Raw, element_count, join_elements, narrow, split_elements
from gateway.protocol.datatypes import ELEMENT_BYTES
from gateway.protocol.errors import GatewayError
from gateway.protocol.infer_message_head import read_varint
from gateway.protocol.protobuf import Message
from gateway.protocol.tfserving.datatypes import number_of, of_number
from gateway.protocol.tfserving.json_tensors import RawTensor, check
from gateway.protocol.tfserving.messages import parse

# Fields that hold raw data on the wire, taken from there as they are: tensor_content, and packed fixed-size numbers.
_CONTENT_TAG, _FLOAT_TAG, _DOUBLE_TAG = 0x22, 0x2A, 0x32

# The field that each datatype's values stand in, and their type code there.
_TYPED = {
    **dict.fromkeys(("INT32", "INT16", "INT8", "UINT8", "UINT16"), ("int_val", "i")),
    **dict.fromkeys(("FP16", "BF16"), ("half_val", "i")),
    "FP32": ("float_val", "f"),
    "FP64": ("double_val", "d"),
    "INT64": ("int64_val", "q"),
    "BOOL": ("bool_val", "B"),
    "UINT32": ("uint32_val", "I"),
    "UINT64": ("uint64_val", "Q"),
}
# What a reply of a few bytes may claim to hold, by its last value going on.
_MAX_REPEATED_BYTES = 1 << 28


def fill(proto: Message, tensor: RawTensor) -> None:
    """Set a TensorProto.

    Raises: ValueError where the tensor's data is not that of its shape.
    """
    check(tensor)
    proto.dtype = number_of(tensor.datatype)
    proto.tensor_shape.SetInParent()
    for axis in tensor.shape:
        proto.tensor_shape.dim.add(size=axis)
    if tensor.datatype == "BYTES":
        proto.string_val.extend(split_elements(tensor.raw, element_count(tensor.shape)))
    else:
        proto.tensor_content = bytes(tensor.raw)


def read(name: str, data: Raw) -> RawTensor:
    """The tensor of a serialised TensorProto.

    Raises: ValueError where it is malformed, or of a datatype that V2 does not have.
    """
    rest, contents = raw_contents.split(data, _CONTENT_TAG)
    rest, floats = raw_contents.split(rest, _FLOAT_TAG)
    rest, doubles = raw_contents.split(rest, _DOUBLE_TAG)
    proto = parse("TensorProto", rest)
    datatype = of_number(proto.dtype)
    if datatype.startswith("DT_"):
        raise ValueError(f"it is of {datatype}, which V2 does not have")
    if proto.tensor_shape.unknown_rank:
        raise ValueError("its shape is not told")
    shape = tuple([dim.size for dim in proto.tensor_shape.dim])
    if any(axis < 0 for axis in shape):
        raise ValueError(f"its shape {list(shape)} is not told")
    count = element_count(shape)
    content = contents[-1] if contents else b""
    if datatype == "BYTES":
        strings = _unpacked(content, count) if content else _strings(proto.string_val, count)
        return RawTensor(name, datatype, shape, join_elements(strings))
    packed = {"FP32": floats, "FP64": doubles}.get(datatype, [])
    raw: Raw = content
    if not raw:
        raw = packed[0] if len(packed) == 1 else b"".join(packed) + _typed(datatype, proto)
        raw = _repeated(raw, count * ELEMENT_BYTES[datatype], ELEMENT_BYTES[datatype])
    made = RawTensor(name, datatype, shape, raw)
    check(made)
    return made


def _typed(datatype: str, proto: Message) -> bytes:
    field, code = _TYPED[datatype]
    values: array[Any] = array(code, getattr(proto, field))
    return narrow(values, ELEMENT_BYTES[datatype])


def _repeated(raw: Raw, size: int, element_bytes: int) -> Raw:
    """The data at its full size, its last element going on."""
    missing = size - len(raw)
    if missing <= 0:
        return raw
    if missing > _MAX_REPEATED_BYTES:
        raise ValueError(f"{len(raw)} bytes of data are not {size}")
    last = bytes(raw[-element_bytes:]) or bytes(element_bytes)
    return bytes(raw) + last * (missing // element_bytes)


def _strings(values: Any, count: int) -> list[bytes]:
    found = list(values)
    last = found[-1] if found else b""
    if len(found) > count or (4 + len(last)) * (count - len(found)) > _MAX_REPEATED_BYTES:
        raise ValueError(f"{len(found)} texts are not {count}")
    return found + [last] * (count - len(found))


def _unpacked(content: Raw, count: int) -> list[bytes]:
    """Strings as `tensor_content` has them: all lengths as varints, then all bytes."""
    data, at = bytes(content), 0
    sizes: list[int] = []
    try:
        for _ in range(count):
            size, at = read_varint(data, at)
            sizes.append(size)
    except (IndexError, GatewayError):
        raise ValueError("the lengths of its texts are malformed") from None
    if at + sum(sizes) != len(data):
        raise ValueError(f"{len(data)} bytes of data are not {count} texts")
    texts = []
    for size in sizes:
        texts.append(data[at : at + size])
        at += size
    return texts
