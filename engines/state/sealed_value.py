"""The sealed form of a value: its reader verifies that it is complete, and whose it is.

    bytes  0 ..  4   magic, "PMST"
           4 ..  8   version, kind, codec, number of parts: a byte each
           8 .. 12   crc32 of the key, bytes 4 .. 8 and all from 12 on
          12 .. 44   HMAC-SHA256 of the key, bytes 4 .. 8 and all from 44 on; zeros without a secret
          44 ..      of each part: dtype (8 bytes, zero-padded), number of axes (u8), axes (u32 each), length (u64)
             ..      the parts' bytes, one after another

The seal covers the key, so that no value can replace another. The checksum detects truncated and changed bytes; the
HMAC detects values written without the secret (a poisoned cache). Numbers are little-endian. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from functools import lru_cache
from math import prod

from engines.state.interfaces import Codec, Part, State, ValueKind

MAGIC, VERSION = b"PMST", 1
_FIXED = struct.Struct("<4s4BI32s")
_PART = struct.Struct("<8sB")
_NO_SECRET = bytes(32)
_MAX_AXES, _MAX_PARTS = 8, 255
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4, "int64": 8, "float64": 8}
ITEM_BYTES |= {"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "int16": 2, "bool": 1}


class CorruptError(ValueError):
    """The bytes are not the written ones: truncated, changed, of another version or tenant."""


class ForeignError(ValueError):
    """The value is whole, and sealed with another secret, or with none."""


@lru_cache(maxsize=1024)
def tenant_secret(secret: bytes, tenant: str) -> bytes:
    """The secret of a tenant's values."""
    return hmac.digest(secret, b"pointsman tenant\0" + tenant.encode(), "sha256")


def seal(key: str, state: State, secret: bytes | None) -> bytes:
    """The stored form of a value under `key`. Raises: ValueError for what the format cannot hold."""
    if len(state.parts) > _MAX_PARTS or any(len(part.shape) > _MAX_AXES for part in state.parts):
        raise ValueError(f"a value has at most {_MAX_PARTS} parts of {_MAX_AXES} axes")
    start = bytes((VERSION, state.kind, state.codec, len(state.parts)))
    table = b"".join(
        _PART.pack(part.dtype.encode(), len(part.shape))
        + struct.pack(f"<{len(part.shape)}IQ", *part.shape, len(part.data))
        for part in state.parts
    )
    pieces = (table, *(part.data for part in state.parts))
    tag = _NO_SECRET if secret is None else _tag(secret, key, start, pieces)
    checksum = zlib.crc32(tag, zlib.crc32(start, zlib.crc32(key.encode())))
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return b"".join((_FIXED.pack(MAGIC, *start, checksum, tag), *pieces))


def unseal(key: str, value: bytes, secret: bytes | None) -> State:
    """The value that was stored under `key`; its parts' data are views of `value`. Raises: CorruptError,
    ForeignError."""
    if len(value) < _FIXED.size:
        raise CorruptError(f"{len(value)} bytes are no value")
    magic, version, kind, codec, num_parts, checksum, tag = _FIXED.unpack_from(value)
    if magic != MAGIC or version != VERSION:
        raise CorruptError(f"it begins with {value[:5]!r}")
    start, rest = value[4:8], memoryview(value)[_FIXED.size :]
    if zlib.crc32(rest, zlib.crc32(tag, zlib.crc32(start, zlib.crc32(key.encode())))) != checksum:
        raise CorruptError("its checksum is another")
    if not hmac.compare_digest(tag, _NO_SECRET if secret is None else _tag(secret, key, start, (rest,))):
        raise ForeignError("it is sealed with another secret")
    try:
        return State(ValueKind(kind), _parts(rest, num_parts), Codec(codec))
    except (struct.error, ValueError, KeyError) as error:
        raise CorruptError(f"its parts cannot be read: {error}") from error


def _parts(rest: memoryview, count: int) -> tuple[Part, ...]:
    described: list[tuple[str, tuple[int, ...], int]] = []
    at = 0
    for _ in range(count):
        name, num_axes = _PART.unpack_from(rest, at)
        *shape, size = struct.unpack_from(f"<{num_axes}IQ", rest, at + _PART.size)
        at += _PART.size + num_axes * 4 + 8
        dtype = name.rstrip(b"\0").decode()
        if size != prod(shape) * ITEM_BYTES[dtype]:
            raise ValueError(f"{size} bytes are no {dtype} of shape {shape}")
        described.append((dtype, tuple(shape), size))
    if at + sum(size for *_, size in described) != len(rest):
        raise ValueError(f"{len(rest)} bytes are not those of {count} parts")
    parts = []
    for dtype, axes, size in described:
        parts.append(Part(dtype, axes, rest[at : at + size]))
        at += size
    return tuple(parts)


def _tag(secret: bytes, key: str, start: bytes, pieces: tuple[bytes | memoryview, ...]) -> bytes:
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    encoded = key.encode()
    mac.update(len(encoded).to_bytes(4, "little") + encoded + start)
    for piece in pieces:
        mac.update(piece)
    return mac.digest()
