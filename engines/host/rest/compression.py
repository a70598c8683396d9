"""gzip and deflate, both ways.

Source: Triton server `http_server.cc` (GetRequestCompressionType, CompressionTypeUsed), `data_compressor.h`.
"""

from __future__ import annotations

import re
import zlib

from engines.core.errors import invalid
from engines.host.exchange import UnknownEncodingError
from gateway.wire.memo import Memo

# wbits: either gzip or zlib.
_EITHER = 32 + zlib.MAX_WBITS
_WBITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
_WEIGHT = re.compile(rb"\s*(\d*\.?\d+)")


def decompressed(body: bytes, encoding: bytes | None, limit: int) -> bytes:
    """The content of a body. As in Triton, that of a compressed one is empty if it is invalid, partial if truncated.

    Raises: UnknownEncodingError; EngineError(INVALID_ARG) for an empty body, and for more than `limit` bytes.
    """
    if encoding is None or encoding in (b"", b"identity"):
        return body
    if encoding not in _WBITS:
        raise UnknownEncodingError
    if not body:
        raise invalid("nothing to be decompressed")
    decompressor = zlib.decompressobj(_EITHER)
    try:
        content = decompressor.decompress(body, limit + 1)
    except zlib.error:
        return b""
    if len(content) > limit:
        raise invalid(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. Use --http-max-input-size to "
            "increase the limit."
        )
    return content


def _preferred(accepted: bytes) -> bytes:
    best, best_weight = b"", 0.0
    for offer in accepted.split(b","):
        kind, mark, weight_text = offer.partition(b";q=")
        weight = 1.0
        if mark:
            match = _WEIGHT.match(weight_text)
            if match is None:
                continue
            weight = float(match[1])
        kind = kind.lstrip(b" ")
        if weight > best_weight and (kind == b"identity" or kind in _WBITS):
            best, best_weight = kind, weight
    return best if best in _WBITS else b""


# The compression that an accept-encoding prefers; empty for none.
preferred = Memo(_preferred, 64)


def compress(body: bytes, encoding: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=_WBITS[encoding])
    return compressor.compress(body) + compressor.flush()
