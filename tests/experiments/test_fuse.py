"""The fuse, which rolls back an arm that fails or stalls."""

from __future__ import annotations

import random

from gateway.config.experiment_specs import FuseSpec
from gateway.experiments.evidence import read_counts, write_counts
from gateway.experiments.fuse import ArmPace, Fuse, FuseTripped, Stall, outcome_counts
from gateway.observability.arms import Arms
from tests.experiments.making import counts

SPEC = FuseSpec(error_rate=0.5, min_requests=20, window=10.0)


def test_an_arm_that_collapses_is_seen_in_the_next_second() -> None:
    """Earlier successes do not delay the fuse."""
    fuse = Fuse(SPEC)
    for second in range(60):
        fuse.take("a", counts(100 * second), second)
        assert fuse.tripped(second) is None
    fuse.take("a", counts(6000, 95), 60)
    assert fuse.tripped(60) == FuseTripped(100, 95, 1.0)


def test_few_requests_say_nothing() -> None:
    """The fuse waits for enough requests, in its window or since the step began."""
    fuse = Fuse(SPEC)
    fuse.take("a", counts(), 0)
    fuse.take("a", counts(19, 19), 1)
    assert fuse.tripped(1) is None
    fuse.take("a", counts(20, 20), 100)
    assert fuse.tripped(100) == FuseTripped(20, 20, None)


def test_a_new_step_forgets_the_steps_before() -> None:
    """A new step drops earlier failures from the step's count; those within the window still count."""
    fuse = Fuse(SPEC)
    fuse.take("a", counts(), 0)
    fuse.take("a", counts(19, 19), 1)
    fuse.begin_step()
    fuse.take("a", counts(20, 20), 2)
    assert fuse.tripped(2) == FuseTripped(20, 20, 1.0)
    assert fuse.tripped(12) is None


def test_what_was_before_a_source_was_known_does_not_count() -> None:
    """A gateway's first report is its baseline, since it may include an earlier run."""
    fuse = Fuse(SPEC)
    fuse.take("a", counts(1000, 1000), 0)
    assert fuse.tripped(0) is None
    fuse.take("b", counts(1000, 1000), 1)
    fuse.take("a", counts(1010, 1010), 1)
    fuse.take("b", counts(1009, 1009), 2)
    assert fuse.tripped(2) is None
    fuse.take("b", counts(1010, 1010), 3)
    assert fuse.tripped(3) == FuseTripped(20, 20, 2.0)


def test_requests_that_another_arms_engine_answered_count_as_failed() -> None:
    """An engine that refuses all requests has no errors of its own: other engines answer for it."""
    fuse = Fuse(SPEC)
    fuse.take("a", None, 0)
    fuse.take("a", counts(crossed=20), 1)
    assert fuse.tripped(1) == FuseTripped(20, 20, 1.0)


def test_an_arm_that_hangs_is_seen_by_the_controls_pace() -> None:
    """The control answers 80 requests a second with 10 in flight; at that pace the arm would have answered its 30."""
    stall = Stall(20)
    assert stall.look(ArmPace(100, 3), ArmPace(400, 10), 0.0) is None
    assert [stall.look(ArmPace(100, 30), ArmPace(400 + 80 * second, 10), second) for second in (1.0, 2.0)] == [
        None,
        None,
    ]
    stalled = stall.look(ArmPace(100, 62), ArmPace(640, 10), 3.0)
    assert stalled is not None and (stalled.in_flight, stalled.seconds) == (62, 3.0)
    assert str(stalled).startswith("none of 62 requests in flight was answered for 3 s, by the control's pace ")


def test_one_answer_is_enough() -> None:
    """A single answer shows that an arm is slow, not stalled; slow arms are left to the guardrails."""
    stall = Stall(20)
    assert all(stall.look(ArmPace(second, 100), ArmPace(100 * second, 10), second) is None for second in range(60))


def test_few_that_wait_say_nothing() -> None:
    """A few long requests may be in flight together by chance."""
    stall = Stall(20)
    assert all(stall.look(ArmPace(5, 19), ArmPace(100 * second, 10), second) is None for second in range(60))


def test_what_takes_as_long_at_the_control_is_not_stuck() -> None:
    """An arm does not count as stalled if the control takes as long or hangs too."""
    stall = Stall(20)
    assert all(stall.look(ArmPace(5, 100), ArmPace(7, 400), second) is None for second in range(60))
    slow = Stall(20)  # half a minute each: by this pace 3 of 20 in 5 s
    assert all(slow.look(ArmPace(5, 20), ArmPace(2 * second, 60), second) is None for second in range(29))


def test_an_equal_arm_is_not_called_stuck() -> None:
    """An hour with a check each second, of requests that take about ten seconds; the arm gets a fifth of them."""
    dice = random.Random(1)
    under_way: dict[str, list[float]] = {"arm": [], "control": []}
    answered = {"arm": 0, "control": 0}
    stall = Stall(20)
    for second in range(3600):
        for _ in range(20):
            name = "arm" if dice.random() < 0.2 else "control"
            under_way[name].append(second + dice.lognormvariate(2.0, 0.8))
        for name, ends in under_way.items():
            left = [end for end in ends if end > second]
            answered[name] += len(ends) - len(left)
            under_way[name] = left
        paces = [ArmPace(answered[name], len(under_way[name])) for name in ("arm", "control")]
        assert stall.look(paces[0], paces[1], float(second)) is None


def test_guessed_arms_count_for_the_fuse_alone() -> None:
    """An arm that fails while Redis is away fails sessions whose arm is a guess: they trip the fuse, and are no
    evidence."""
    fuse = Fuse(SPEC)
    fuse.take("a", counts(), 0)
    seen = counts(5, 5)
    seen.guessed, seen.guessed_errors = 20, 15
    fuse.take("a", seen, 1)
    assert fuse.tripped(1) == FuseTripped(25, 20, 1.0)

    arms = Arms(100)
    for status in (200, 500, 500):
        arms.guessed("x", "new").answered(b"1", status, 10, 0.1)
    arms.guessed("x", "new").exposed()
    arms.meter("x", "new").answered(b"2", 200, 10, 0.1)
    (counted,) = arms.counted().values()
    assert (counted.guessed, counted.guessed_errors, counted.guessed_units) == (3, 2, 1)
    assert (sum(counted.requests), sum(counted.errors), sum(counted.units), counted.kinds) == (1, 0, 0, {})
    assert outcome_counts(counted) == (4, 2)
    again = read_counts(counted.key, write_counts(counted))
    assert again == counted
