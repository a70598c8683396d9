"""Content codings are undone as their formats say, and never beyond the bound."""

import gzip
import sys
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest

from gateway.wire import content_codec
from gateway.wire.content_codec import inflated, joined_coding

PLAIN = b"0123456789" * 1000
CODINGS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
    b"br": brotli.compress,
}


@pytest.mark.parametrize("coding", CODINGS)
def test_each_coding(coding: bytes) -> None:
    """A body is inflated whole up to the bound; of a longer one, one byte more than that at least."""
    data = CODINGS[coding](PLAIN)
    assert inflated(coding, data, len(PLAIN)) == PLAIN
    assert inflated(coding, CODINGS[coding](b""), 0) == b""
    assert len(inflated(coding, data, len(PLAIN) - 1)) > len(PLAIN) - 1
    assert len(inflated(coding, data, 0)) > 0
    for broken in (data[:-1], data[:5], b"", b"junk"):
        with pytest.raises(ValueError):
            inflated(coding, broken, len(PLAIN))
    with pytest.raises(ValueError):
        inflated(coding, data + b"junk", len(PLAIN))


def test_members_of_gzip() -> None:
    """All members are one body; too many are refused, since each costs a copy of the rest."""
    members = b"".join(gzip.compress(PLAIN[at : at + 1000]) for at in range(0, len(PLAIN), 1000))
    assert inflated(b"gzip", members, len(PLAIN)) == PLAIN
    assert len(inflated(b"gzip", members, 1500)) == 1501
    with pytest.raises(ValueError, match="members"):
        inflated(b"gzip", gzip.compress(b"") * 100_000, len(PLAIN))


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb(coding: bytes) -> None:
    """What would inflate to 50 MB takes the memory of the bound."""
    data = CODINGS[coding](bytes(50_000_000))
    tracemalloc.start()
    try:
        assert len(inflated(coding, data, 10_000)) > 10_000
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_unknown_codings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codings without a decoder are told apart from malformed bodies; so is br without its package."""
    for coding in (b"zstd", b"gzip, br", b"gzip, gzip"):
        with pytest.raises(LookupError):
            inflated(coding, b"", 1)
    content_codec._brotli.cache_clear()
    monkeypatch.setitem(sys.modules, "brotli", None)
    try:
        with pytest.raises(LookupError):
            inflated(b"br", brotli.compress(PLAIN), 1)
    finally:
        content_codec._brotli.cache_clear()


def test_joined_coding() -> None:
    """Several fields and lists are one list, in which `identity` counts for nothing."""
    assert joined_coding([b"identity"]) == b""
    assert joined_coding([b"identity", b"GZIP "]) == b"gzip"
    assert joined_coding([b" gzip ,identity,", b"br"]) == b"gzip, br"
