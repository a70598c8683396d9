"""Reading and bounding session ids."""

import pytest

from gateway.protocol.sequence import Sequence, bounded, may_stand_in_a_field, name_of, read_name


@pytest.mark.parametrize(
    "value, name",
    [
        (b"s1", "s1"),
        (b" s1\t", "s1"),
        ("caf\u00e9".encode(), "caf\u00e9"),  # as most clients and JSON bodies encode it
        (b"caf\xe9", "caf\u00e9"),  # HTTP's older encoding, Latin-1
        (b"\xff\xfe", "\u00ff\u00fe"),
        (b"", ""),
    ],
)
def test_a_field_tells_a_name(value: bytes, name: str) -> None:
    """The same characters are the same session, in UTF-8 or Latin-1."""
    assert read_name(value) == name


def test_a_long_name_is_known_by_its_digest() -> None:
    """A long session id is replaced by its digest, and a digest stays as it is."""
    assert bounded("x" * 256) == "x" * 256
    assert bounded("x" * 257).startswith("sha256-") and len(bounded("x" * 1_000_000)) == 71
    assert bounded("x" * 257) != bounded("x" * 258)
    assert bounded(bounded("x" * 257)) == bounded("x" * 257) == read_name(b"x" * 257)


def test_no_session_has_a_sequences_name() -> None:
    """A session id with the internal form of a sequence does not collide with that sequence."""
    sequence = Sequence("7", "m")
    assert bounded(sequence.name) != sequence.name
    assert name_of(bounded(sequence.name)) != name_of(sequence)


@pytest.mark.parametrize("name", ["a\r\nb", "a\nb", "a\0b", " a", "a ", "\x7f", "\u2028"])
def test_what_no_field_can_tell(name: str) -> None:
    """Session ids with line breaks or surrounding blanks cannot be sent in a header."""
    assert not may_stand_in_a_field(name)
    assert may_stand_in_a_field("a b-\u00e9\u65e5")
