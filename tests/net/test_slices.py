"""Computations in slices."""

from __future__ import annotations

import asyncio

import pytest

from gateway.net import slices
from gateway.net.slices import run_in_slices, slice_seconds
from gateway.routing.steps import Steps, run_now
from tests.support.turns import turns_during


def count_to(end: int) -> Steps[int]:
    for _ in range(end):
        yield
    return end


def test_the_result_is_the_same_with_and_without_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run to their end, at once or in slices; in slices the event loop has a turn between any two."""
    assert run_now(count_to(3)) == 3
    monkeypatch.setattr(slices, "slice_seconds", lambda turn_seconds: -1.0)

    result, turns = asyncio.run(turns_during(run_in_slices(count_to(100))))
    assert result == 100
    assert turns >= 99


def test_a_busy_loop_has_longer_slices() -> None:
    """A slice grows with the turn before it, so that the computation gets its share of a busy loop, up to a limit; with
    other computations in the same turn it stays bounded."""
    lengths = [slice_seconds(turn / 1000) for turn in range(200)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[10] < lengths[-1] <= 0.005
    assert 0.2 <= lengths[10] / 0.010 <= 0.3


def test_what_fails_in_slices_raises() -> None:
    """An exception of a step reaches whoever waits for the result."""

    def fail() -> Steps[None]:
        yield
        raise ValueError("it is wrong")

    with pytest.raises(ValueError, match="it is wrong"):
        asyncio.run(run_in_slices(fail()))
    with pytest.raises(ValueError, match="it is wrong"):
        run_now(fail())
