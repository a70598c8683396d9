"""gRPC's statuses and messages as header fields have them."""

import pytest

from gateway.protocol.grpc_status import read_message, write_message


@pytest.mark.parametrize("text", ["", "plain", "a % b", "größer\n", "x" * 7000])
def test_a_message_survives(text: str) -> None:
    assert read_message(write_message(text)) == text


@pytest.mark.parametrize("letter", ["x", "é", "%", "\U0001f600"])
def test_a_long_message_is_cut(letter: str) -> None:
    """A name of 60 KB that a client sent comes back in a message that its library takes."""
    for lead in ("", "a", "ab"):
        written = write_message(lead + letter * 60_000)
        assert 6900 < len(written) <= 7000 and written.endswith(b"...")
        assert set(read_message(written)) <= {*lead, letter, ".", "\ufffd"}
