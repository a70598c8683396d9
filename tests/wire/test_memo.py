"""The memo of parsed values."""

import pytest

from gateway.wire.memo import Memo


def test_what_is_used_stays() -> None:
    """Recently used values stay in one of two generations, and a value in use is not computed again."""
    read: list[bytes] = []

    def upper(key: bytes) -> bytes:
        read.append(key)
        return key.upper()

    memo = Memo(upper, size=3)
    for number in range(50):
        assert memo(b"often") == b"OFTEN"
        assert memo(b"x%d" % number) == b"X%d" % number
    assert read.count(b"often") == 1
    assert repr(memo) in {f"<Memo {young} young, 3 old>" for young in (1, 2, 3)}


def test_memory_is_bounded() -> None:
    """However many keys come, no more values are stored than two generations hold."""
    memo = Memo(bytes.upper, size=3)
    for number in range(1000):
        memo(b"x%d" % number)
    assert repr(memo) == "<Memo 1 young, 3 old>"


def test_a_key_that_comes_once_need_not_be_stored() -> None:
    """On second sight, a value is stored when its key comes again."""
    memo = Memo(bytes.upper, on_second_sight=True)
    for number in range(100):
        memo(b"x%d" % number)
    assert repr(memo) == "<Memo 0 young, 0 old>"
    memo(b"x99")
    assert repr(memo) == "<Memo 1 young, 0 old>"


def test_where_no_key_comes_again_few_are_looked_up() -> None:
    """Keys that come again between others are cached, and so are those that begin to come again after many that did
    not: until then most are read without a look-up."""
    read: list[bytes] = []

    def upper(key: bytes) -> bytes:
        read.append(key)
        return key.upper()

    memo = Memo(upper, on_second_sight=True)
    for number in range(10_000):
        assert memo(b"x%d" % number) == b"X%d" % number
        if number % 100 == 0:
            memo(b"often")
    assert read.count(b"often") == 2
    for number in range(1000):
        memo(b"y%d" % number)
    read.clear()
    for _ in range(100):
        assert memo(b"again") == b"AGAIN"
    assert len(read) <= 2 * 8


def test_errors_and_long_keys_are_not_remembered() -> None:
    """An error is not cached, and a very long key is computed each time."""
    calls = []

    def read(key: bytes) -> int:
        calls.append(key)
        if key == b"bad":
            raise ValueError
        return len(key)

    memo = Memo(read)
    for _ in range(2):
        with pytest.raises(ValueError):
            memo(b"bad")
        assert memo(b"x" * 5000) == 5000
    assert len(calls) == 4
