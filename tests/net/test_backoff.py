"""The pause before a restart."""

from __future__ import annotations

import pytest

from gateway.net.backoff import Backoff

LOOPS = [
    ("doubles up to the longest", [0.0] * 6, [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]),
    ("starts again after a healthy run", [0.0, 0.0, 60.0, 0.0], [0.5, 1.0, 0.5, 1.0]),
    ("a short run changes nothing", [0.0, 59.0, 59.0], [0.5, 1.0, 2.0]),
]


@pytest.mark.parametrize(("what", "ran_seconds", "pauses"), LOOPS, ids=[row[0] for row in LOOPS])
def test_pauses(what: str, ran_seconds: list[float], pauses: list[float]) -> None:
    """Each failure in a row doubles the pause; a healthy run resets it."""
    backoff = Backoff(0.5, 4.0, healthy_after=60.0)
    assert [backoff.failed(seconds) for seconds in ran_seconds] == pauses


def test_it_never_gives_up() -> None:
    """After thousands of failures the pause stays at its maximum, without an error."""
    backoff = Backoff(0.5, 4.0)
    assert backoff.seconds == 0
    assert {backoff.failed() for _ in range(5000)} == {0.5, 1.0, 2.0, 4.0}
    backoff.reset()
    assert (backoff.seconds, backoff.failed()) == (0, 0.5)
