"""The hard fuse."""

from __future__ import annotations

from gateway.config.experiment_specs import FuseSpec
from gateway.experiments.fuse import Blown, Fuse
from tests.experiments.making import counts

SPEC = FuseSpec(error_rate=0.5, min_requests=20, window=10.0)


def test_an_arm_that_collapses_is_seen_in_the_next_second() -> None:
    """What it did well before does not protect it."""
    fuse = Fuse(SPEC)
    for second in range(60):
        fuse.take("a", counts(100 * second), second)
        assert fuse.blown(second) is None
    fuse.take("a", counts(6000, 95), 60)
    assert fuse.blown(60) == Blown(100, 95, 1.0)


def test_few_requests_say_nothing() -> None:
    """Until there are enough of them, in the window or since the step began."""
    fuse = Fuse(SPEC)
    fuse.take("a", counts(), 0)
    fuse.take("a", counts(19, 19), 1)
    assert fuse.blown(1) is None
    fuse.take("a", counts(20, 20), 100)
    assert fuse.blown(100) == Blown(20, 20, None)


def test_a_new_step_forgets_the_steps_before() -> None:
    """But not the last seconds."""
    fuse = Fuse(SPEC)
    fuse.take("a", counts(), 0)
    fuse.take("a", counts(19, 19), 1)
    fuse.begin_step()
    fuse.take("a", counts(20, 20), 2)
    assert fuse.blown(2) == Blown(20, 20, 1.0)
    assert fuse.blown(12) is None


def test_what_was_before_a_source_was_known_does_not_count() -> None:
    """A gateway tells what it has counted since it began, which may be of an earlier run."""
    fuse = Fuse(SPEC)
    fuse.take("a", counts(1000, 1000), 0)
    assert fuse.blown(0) is None
    fuse.take("b", counts(1000, 1000), 1)
    fuse.take("a", counts(1010, 1010), 1)
    fuse.take("b", counts(1009, 1009), 2)
    assert fuse.blown(2) is None
    fuse.take("b", counts(1010, 1010), 3)
    assert fuse.blown(3) == Blown(20, 20, 2.0)


def test_requests_that_another_arms_engine_answered_count_as_failed() -> None:
    """An engine that refuses all looks well otherwise: others answer for it."""
    fuse = Fuse(SPEC)
    fuse.take("a", None, 0)
    fuse.take("a", counts(crossed=20), 1)
    assert fuse.blown(1) == Blown(20, 20, 1.0)
