"""Protobuf's encoding, read and written without a schema.

Source: protobuf.dev, "Encoding"; limits as protobuf's own readers have them: tags of five bytes and 32 bits, numbers of
ten bytes and 64 bits, groups a hundred deep.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.protocol.errors import ErrorKind, GatewayError

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
_MAX_TAG = (1 << 32) - 1
_MAX_TAG_BYTES = 5
MAX_DEPTH = 100
_MAX_GROUP_FIELDS = 4096  # with all that is in it: no V2 message has groups
_64_BITS = (1 << 64) - 1

# A field of two bytes takes a microsecond, while nobody else is served.
MAX_FIELDS = 16 * 1024

Field = tuple[int, int, int | bytes]  # number, wire type, value


def fields(message: bytes, most: int = MAX_FIELDS) -> Iterator[Field]:
    """The fields of a message, in their order; of fixed numbers and groups, the bytes. Raises:
    GatewayError(BAD_REQUEST) where it is malformed, (BODY_TOO_LARGE) where it has more."""
    at, end = 0, len(message)
    left = most
    try:
        while at < end:
            left -= 1
            if left < 0:
                raise too_many_fields(most)
            tag, at = read_tag(message, at)
            kind = tag & 7
            value: int | bytes
            if kind == BYTES:
                size, at = read_varint(message, at)
                value = message[at : at + size]
                at += size
            elif kind == VARINT:
                value, at = read_varint(message, at)
            else:
                start, at = at, skip(message, at, tag)
                value = message[start:at]
            if at > end:
                raise malformed()
            yield tag >> 3, kind, value
    except IndexError:
        raise malformed() from None


def too_many_fields(most: int) -> GatewayError:
    return GatewayError(ErrorKind.BODY_TOO_LARGE, f"the message has more than {most} fields")


def read_tag(data: bytes, at: int) -> tuple[int, int]:
    """A field's number and wire type together, and where they end. Raises: IndexError where the data ends first;
    GatewayError where no field has such a tag."""
    tag, stop = read_varint(data, at)
    if not 8 <= tag <= _MAX_TAG or stop - at > _MAX_TAG_BYTES:
        raise malformed()
    return tag, stop


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 64 bits and where it ends. Raises: IndexError where the data ends first; GatewayError where it is
    longer than ten bytes."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _64_BITS, at
        shift += 7
        if shift > 63:
            raise malformed()


def write_varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def skip(data: bytes, at: int, tag: int) -> int:
    """Where the value behind a tag ends, which may lie behind what there is. Raises: as `read_tag`."""
    kind = tag & 7
    if kind == VARINT:
        return read_varint(data, at)[1]
    if kind == FIXED64:
        return at + 8
    if kind == FIXED32:
        return at + 4
    if kind == BYTES:
        size, at = read_varint(data, at)
        return at + size
    if kind == START_GROUP:
        return _skip_group(data, at, tag)
    raise malformed()


def _skip_group(data: bytes, at: int, tag: int) -> int:
    groups = [tag >> 3]
    num_fields = 0
    while groups:
        num_fields += 1
        if num_fields > _MAX_GROUP_FIELDS:
            raise malformed()
        tag, at = read_tag(data, at)
        if tag & 7 == START_GROUP:
            groups.append(tag >> 3)
            if len(groups) > MAX_DEPTH:
                raise malformed()
        elif tag & 7 == END_GROUP:
            if groups.pop() != tag >> 3:
                raise malformed()
        else:
            at = skip(data, at, tag)
    return at


def malformed() -> GatewayError:
    return GatewayError(ErrorKind.BAD_REQUEST, "the request is no protobuf message of this method")
