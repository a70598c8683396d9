"""What sessions are called, wherever their names stand."""

import pytest

from gateway.protocol.sequence import Sequence, bounded, may_stand_in_a_field, name_of, read_name


@pytest.mark.parametrize(
    "value, name",
    [
        (b"s1", "s1"),
        (b" s1\t", "s1"),
        ("caf\u00e9".encode(), "caf\u00e9"),  # as most clients write it, and as a JSON body tells it
        (b"caf\xe9", "caf\u00e9"),  # as HTTP had it
        (b"\xff\xfe", "\u00ff\u00fe"),
        (b"", ""),
    ],
)
def test_a_field_tells_a_name(value: bytes, name: str) -> None:
    """The same letters are the same session, by either encoding."""
    assert read_name(value) == name


def test_a_long_name_is_known_by_its_digest() -> None:
    """Nobody fills the memory with names; a digest is the name of what has it."""
    assert bounded("x" * 256) == "x" * 256
    assert bounded("x" * 257).startswith("sha256-") and len(bounded("x" * 1_000_000)) == 71
    assert bounded("x" * 257) != bounded("x" * 258)
    assert bounded(bounded("x" * 257)) == bounded("x" * 257) == read_name(b"x" * 257)


def test_no_session_has_a_sequences_name() -> None:
    """Whoever names himself as a sequence is known in this process does not move it."""
    sequence = Sequence("7", "m")
    assert bounded(sequence.name) != sequence.name
    assert name_of(bounded(sequence.name)) != name_of(sequence)


@pytest.mark.parametrize("name", ["a\r\nb", "a\nb", "a\0b", " a", "a ", "\x7f", "\u2028"])
def test_what_no_field_can_tell(name: str) -> None:
    """A line's end would begin another field, and blanks at the ends are lost on the way."""
    assert not may_stand_in_a_field(name)
    assert may_stand_in_a_field("a b-\u00e9\u65e5")
