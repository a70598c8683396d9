"""Content codings of HTTP bodies (RFC 9110 section 8.4.1): gzip, deflate, and br where the package brotli is installed.

Never more is inflated than the caller allows, and a byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

IDENTITY = b"identity"

# wbits of zlib.decompressobj for gzip, and for deflate in its zlib wrapping.
_GZIP, _DEFLATE = 31, 15
# Members of one gzip stream: each costs a copy of what follows it.
_MAX_MEMBERS = 64


def joined_coding(values: list[bytes]) -> bytes:
    """The codings of all Content-Encoding fields of a message, in lower case, without `identity`; empty where there is
    none."""
    names = [name.strip().lower() for value in values for name in value.split(b",")]
    return b", ".join([name for name in names if name and name != IDENTITY])


def inflated(coding: bytes, data: bytes, most: int) -> bytes:
    """The body without its coding; longer than `most` bytes where the rest was not inflated.

    Raises: ValueError where it is malformed, LookupError where the coding is none that is undone here.
    """
    inflate = _INFLATE.get(coding)
    if inflate is None:
        raise LookupError(coding)
    return inflate(data, most)


def deflated(coding: bytes, data: bytes) -> bytes:
    """The body in its coding, quickly rather than small.

    Raises: LookupError where the coding is none that is done here.
    """
    wbits = _DEFLATE_BITS.get(coding)
    if wbits is None:
        raise LookupError(coding)
    compressor = zlib.compressobj(1, zlib.DEFLATED, wbits)
    return compressor.compress(data) + compressor.flush()


def _gunzip(data: bytes, most: int) -> bytes:
    """All members, as RFC 1952 section 2.2 has them."""
    pieces: list[bytes] = []
    left = most + 1
    for _ in range(_MAX_MEMBERS):
        piece, data = _member(_GZIP, data, left)
        pieces.append(piece)
        left -= len(piece)
        if not data or not left:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    raise ValueError(f"it has more than {_MAX_MEMBERS} members")


def _inflate(data: bytes, most: int) -> bytes:
    plain, rest = _member(_DEFLATE, data, most + 1)
    if rest and len(plain) <= most:
        raise ValueError("something stands behind it")
    return plain


def _member(wbits: int, data: bytes, most: int) -> tuple[bytes, bytes]:
    """One stream, and what stands behind it; of a stream that is longer than `most`, its beginning alone."""
    decompressor = zlib.decompressobj(wbits)
    try:
        plain = decompressor.decompress(data, most)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not decompressor.eof and len(plain) < most:
        raise ValueError("it is cut off")
    return plain, decompressor.unused_data


def _unbrotli(data: bytes, most: int) -> bytes:
    brotli = _brotli()
    if brotli is None:
        raise LookupError(b"br")
    decompressor = brotli.Decompressor()
    pieces: list[bytes] = []
    left = most + 1
    try:
        while left > 0 and not decompressor.is_finished():
            piece = decompressor.process(data, output_buffer_limit=left)
            if not (piece or decompressor.is_finished()) and decompressor.can_accept_more_data():
                raise ValueError("it is cut off")
            pieces.append(piece)
            left -= len(piece)
            data = b""
    except brotli.error as error:
        raise ValueError(str(error)) from None
    return b"".join(pieces)


@lru_cache(1)
def _brotli() -> Any:
    """The package; None where it is missing, or too old to bound what it inflates (before 1.2)."""
    try:
        brotli = import_module("brotli")
        brotli.Decompressor().process(b"", output_buffer_limit=1)
    except (ImportError, TypeError):
        return None
    return brotli


_DEFLATE_BITS = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": _DEFLATE}
_INFLATE: dict[bytes, Callable[[bytes, int], bytes]] = {
    b"gzip": _gunzip,
    b"x-gzip": _gunzip,  # an old name of it (RFC 9110 section 8.4.1.3)
    b"deflate": _inflate,
    b"br": _unbrotli,
}
