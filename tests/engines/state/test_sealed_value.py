"""Values as bytes: unsealing gives what was sealed, or an error."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.state.interfaces import Codec, Part, State, ValueKind
from engines.state.sealed_value import ITEM_BYTES, CorruptError, ForeignError, seal, tenant_secret, unseal

SECRET = b"0123456789abcdef"
KEY = "pointsman:1:kv:00:ff"


@st.composite
def parts(draw: st.DrawFn) -> Part:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    size = ITEM_BYTES[dtype]
    for axis in shape:
        size *= axis
    return Part(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


states = st.builds(State, st.sampled_from(ValueKind), st.lists(parts(), max_size=4).map(tuple), st.sampled_from(Codec))
secrets = st.none() | st.binary(min_size=1, max_size=40)


def plain(state: State) -> State:
    """The same state with bytes in place of views."""
    return State(state.kind, tuple(Part(p.dtype, p.shape, bytes(p.data)) for p in state.parts), state.codec)


@given(states, secrets)
def test_what_was_sealed_opens(state: State, secret: bytes | None) -> None:
    """A sealed value is restored completely, whatever its parts are."""
    assert plain(unseal(KEY, seal(KEY, state, secret), secret)) == state


@given(states, secrets, st.data())
def test_a_flipped_byte_is_found(state: State, secret: bytes | None, data: st.DataObject) -> None:
    """A flipped byte is detected at any position, with a secret or without."""
    value = bytearray(seal(KEY, state, secret))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptError):
        unseal(KEY, bytes(value), secret)


@given(states, secrets, st.data())
def test_a_cut_is_found(state: State, secret: bytes | None, data: st.DataObject) -> None:
    """A truncated value is corrupt, and so is one with extra bytes at its end."""
    value = seal(KEY, state, secret)
    for wrong in (value[: data.draw(st.integers(0, len(value) - 1))], value + data.draw(st.binary(min_size=1))):
        with pytest.raises(CorruptError):
            unseal(KEY, wrong, secret)


@given(st.binary(max_size=200), secrets)
def test_noise_is_no_value(noise: bytes, secret: bytes | None) -> None:
    """Bytes of other writers are rejected without being parsed."""
    with pytest.raises(CorruptError):
        unseal(KEY, noise, secret)


@given(states)
def test_a_value_opens_for_its_own_secret_alone(state: State) -> None:
    """Another secret, no secret or another tenant's secret is refused. A value sealed without a secret is refused with
    one."""
    with pytest.raises(ForeignError):
        unseal(KEY, seal(KEY, state, SECRET), b"another")
    with pytest.raises(ForeignError):
        unseal(KEY, seal(KEY, state, SECRET), None)
    with pytest.raises(ForeignError):
        unseal(KEY, seal(KEY, state, None), SECRET)
    with pytest.raises(ForeignError):
        unseal(KEY, seal(KEY, state, tenant_secret(SECRET, "a")), tenant_secret(SECRET, "b"))


def test_a_value_stands_for_its_own_key_alone() -> None:
    """Under another key a value is corrupt, so that no reply uses the blocks of another text."""
    value = seal(KEY, State(ValueKind.BLOCK, (Part("int8", (2,), b"ab"),)), SECRET)
    with pytest.raises(CorruptError):
        unseal(KEY + "0", value, SECRET)


def test_the_form_is_the_same_everywhere() -> None:
    """The bytes are fixed, so that machines and releases can share values: a change of format needs a new version."""
    value = seal(
        KEY, State(ValueKind.BLOCK, (Part("float16", (1, 3), b"abcdef"), Part("int8", (), b"x")), Codec.INT8), None
    )
    assert value[:8] == b"PMST\x01\x01\x01\x02"
    assert value[12:44] == bytes(32)
    assert value[44:] == (
        b"float16\0\x02\x01\0\0\0\x03\0\0\0\x06\0\0\0\0\0\0\0" + b"int8\0\0\0\0\0\x01\0\0\0\0\0\0\0" + b"abcdef" + b"x"
    )
    sealed = seal(KEY, State(ValueKind.SEQUENCE, (Part("int8", (1,), b"x"),)), SECRET)
    assert hashlib.sha256(sealed).hexdigest()[:16] == "f613ad652af2252d"


def test_what_has_no_place_is_refused() -> None:
    """A part with nine axes is rejected: no array of the engine has as many."""
    with pytest.raises(ValueError, match="8 axes"):
        seal(KEY, State(ValueKind.BLOCK, (Part("int8", (1,) * 9, b"x"),)), None)
