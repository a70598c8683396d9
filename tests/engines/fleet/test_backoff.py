"""The pause before a restart."""

from __future__ import annotations

import pytest

from engines.fleet.backoff import Backoff
from engines.fleet.spec import BackoffSpec

SPEC = BackoffSpec(first=0.5, longest=4.0, well_after=60.0)

LOOPS = [
    ("doubles up to the longest", [0.0] * 6, [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]),
    ("begins anew after a healthy time", [0.0, 0.0, 60.0, 0.0], [0.5, 1.0, 0.5, 1.0]),
    ("a short time of health changes nothing", [0.0, 59.0, 59.0], [0.5, 1.0, 2.0]),
]


@pytest.mark.parametrize(("what", "ready_seconds", "pauses"), LOOPS, ids=[row[0] for row in LOOPS])
def test_pauses(what: str, ready_seconds: list[float], pauses: list[float]) -> None:
    """Each end in a row doubles the pause; a healthy time before it makes it the first again."""
    backoff = Backoff(SPEC)
    assert [backoff.ended(seconds) for seconds in ready_seconds] == pauses


def test_it_never_gives_up() -> None:
    """After thousands of ends the pause is still the longest, and no error."""
    backoff = Backoff(SPEC)
    assert {backoff.ended(0.0) for _ in range(5000)} == {0.5, 1.0, 2.0, 4.0}
    assert repr(backoff) == "<Backoff 5000 in a row>"
