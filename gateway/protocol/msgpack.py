"""MessagePack, as far as engines' events use it: nil, booleans, numbers, text, bytes, arrays and maps; no extensions.

Source: the MessagePack specification (github.com/msgpack/msgpack/blob/master/spec.md).
"""

from __future__ import annotations

from struct import Struct, error, pack
from typing import Any

_MAX_DEPTH = 16
_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
_FLOAT_64, _INT_64, _UINT_64 = 0xCB, 0xD3, 0xCF
_NUMBERS = {
    0xCA: Struct(">f"),
    _FLOAT_64: Struct(">d"),
    0xCC: Struct(">B"),
    0xCD: Struct(">H"),
    0xCE: Struct(">I"),
    _UINT_64: Struct(">Q"),
    0xD0: Struct(">b"),
    0xD1: Struct(">h"),
    0xD2: Struct(">i"),
    _INT_64: Struct(">q"),
}
_ONE, _TWO, _FOUR = Struct(">B"), Struct(">H"), Struct(">I")
# The length field of each type of variable length
_BYTES = {0xC4: _ONE, 0xC5: _TWO, 0xC6: _FOUR}
_TEXTS = {0xD9: _ONE, 0xDA: _TWO, 0xDB: _FOUR}
_ARRAYS = {0xDC: _TWO, 0xDD: _FOUR}
_MAPS = {0xDE: _TWO, 0xDF: _FOUR}


def unpack(data: bytes) -> Any:
    """The value that a message holds; arrays are lists.

    Raises: ValueError where it is no MessagePack, has an extension, or nests too deeply.
    """
    try:
        value, end = _read(data, 0, _MAX_DEPTH)
    except (IndexError, error, TypeError) as reason:  # TypeError: a list as a key
        raise ValueError(f"it is no MessagePack: {reason}") from None
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes follow a MessagePack value")
    return value


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """A value, and where it ends."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 0x100, at
    if kind < 0x90:
        return _read_map(data, at, kind & 0x0F, depth)
    if kind < 0xA0:
        return _read_array(data, at, kind & 0x0F, depth)
    if kind < 0xC0:
        return _read_bytes(data, at, kind & 0x1F, is_text=True)
    if (number := _NUMBERS.get(kind)) is not None:
        return number.unpack_from(data, at)[0], at + number.size
    if kind in _BYTES or kind in _TEXTS:
        is_text = kind in _TEXTS
        length = (_TEXTS if is_text else _BYTES)[kind]
        return _read_bytes(data, at + length.size, length.unpack_from(data, at)[0], is_text=is_text)
    if (length_of := _ARRAYS.get(kind)) is not None:
        return _read_array(data, at + length_of.size, length_of.unpack_from(data, at)[0], depth)
    if (length_of := _MAPS.get(kind)) is not None:
        return _read_map(data, at + length_of.size, length_of.unpack_from(data, at)[0], depth)
    if kind in (_NIL, _FALSE, _TRUE):
        return (None if kind == _NIL else kind == _TRUE), at
    raise ValueError(f"MessagePack type 0x{kind:02x} is not supported")


def _read_bytes(data: bytes, at: int, length: int, *, is_text: bool) -> tuple[Any, int]:
    end = at + length
    if end > len(data):
        raise ValueError("a MessagePack value is cut off")
    return (data[at:end].decode() if is_text else data[at:end]), end


def _read_array(data: bytes, at: int, length: int, depth: int) -> tuple[list[Any], int]:
    _check(data, at, length, depth)
    values = []
    for _ in range(length):
        value, at = _read(data, at, depth - 1)
        values.append(value)
    return values, at


def _read_map(data: bytes, at: int, length: int, depth: int) -> tuple[dict[Any, Any], int]:
    _check(data, at, 2 * length, depth)
    found = {}
    for _ in range(length):
        key, at = _read(data, at, depth - 1)
        found[key], at = _read(data, at, depth - 1)
    return found, at


def _check(data: bytes, at: int, num_values: int, depth: int) -> None:
    """A value takes a byte at least: a length that the rest cannot hold is refused before memory is taken for it."""
    if num_values > len(data) - at:
        raise ValueError("a MessagePack value is cut off")
    if depth <= 1:
        raise ValueError(f"MessagePack values nest more than {_MAX_DEPTH} deep")


def packed(value: Any) -> bytes:
    """A value of these types as a message; tuples are arrays."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def _write(value: Any, parts: list[bytes]) -> None:
    match value:
        case None:
            parts.append(b"\xc0")
        case bool():
            parts.append(b"\xc3" if value else b"\xc2")
        case int():
            parts.append(_integer(value))
        case float():
            parts.append(pack(">Bd", _FLOAT_64, value))
        case str():
            data = value.encode()
            parts += [pack(">BI", 0xDB, len(data)), data]
        case bytes():
            parts += [pack(">BI", 0xC6, len(value)), value]
        case list() | tuple():
            parts.append(pack(">BI", 0xDD, len(value)))
            for each in value:
                _write(each, parts)
        case dict():
            parts.append(pack(">BI", 0xDF, len(value)))
            for key, each in value.items():
                _write(key, parts)
                _write(each, parts)
        case _:
            raise TypeError(f"{type(value).__name__} has no MessagePack type")


def _integer(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _ONE.pack(value)
    if 0 <= value < 1 << 16:
        return pack(">BH", 0xCD, value)
    if 0 <= value < 1 << 32:
        return pack(">BI", 0xCE, value)
    return pack(">BQ", _UINT_64, value) if value >= 0 else pack(">Bq", _INT_64, value)
