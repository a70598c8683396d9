"""Commands that change the state of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.config.experiment_specs import ArmSpec, BanditSpec
from gateway.experiments.runs import (
    CommandRefused,
    RunState,
    RunStatus,
    begin,
    fingerprint,
    finish,
    go_to,
    hold,
    promote,
    read_state,
    resume,
    roll_back,
    shares_with,
    start,
    stop,
    weights_of,
    write_state,
)
from tests.experiments.making import RAMP, experiment, rules

SPEC = experiment()
IDLE = RunState("f", weights_of(SPEC), revision=1)


def test_a_life_from_start_to_end() -> None:
    """Each change of a state increases the revision, and each change of shares the turn."""
    first = start(SPEC, IDLE, 10.0, "ann", "try it")
    assert (first.status, first.step, first.shares) == (RunStatus.RUNNING, 1, {"old": 0.95, "new": 0.05})
    assert (first.run, first.turn, first.revision, first.by, first.since) == (2, 2, 2, "ann", 10.0)
    second = go_to(SPEC, first, 20.0, "the ramp", "all is well", 2)
    assert (second.step, second.shares, second.run, second.turn) == (2, {"old": 0.75, "new": 0.25}, 2, 3)
    held = hold(second, 25.0, "ann", "lunch")
    assert (held.status, held.turn, held.since) == (RunStatus.HELD, 3, 20.0)
    third = go_to(SPEC, resume(held, 30.0, "ann", ""), 40.0, "the ramp", "", 3)
    assert third.shares == {"old": 0.0, "new": 1.0}
    done = finish(third, 50.0, "the ramp", "")
    assert (done.status, done.shares, done.turn) == (RunStatus.FINISHED, third.shares, third.turn)
    assert done.revision == 7


def test_a_way_back() -> None:
    """After a rollback the control gets all traffic; after a stop the rules' weights apply; a restart is a new run,
    without the earlier evidence."""
    running = start(SPEC, IDLE, 10.0, "ann", "")
    back = roll_back(SPEC, running, 11.0, "the ramp", "errors")
    assert (back.status, back.in_force) == (RunStatus.ROLLED_BACK, {"old": 1.0, "new": 0.0})
    stopped = stop(back, 12.0, "ann", "")
    assert (stopped.status, stopped.shares, stopped.in_force) == (RunStatus.STOPPED, {}, weights_of(SPEC))
    assert start(SPEC, back, 13.0, "ann", "").run == running.run + 1


def test_one_arm_gets_all_by_an_operators_word() -> None:
    """An operator can promote an arm in any state of the ramp."""
    assert promote(SPEC, IDLE, 1.0, "ann", "", "new").in_force == {"old": 0.0, "new": 1.0}


LIVE, PLAIN = start(SPEC, IDLE, 1, "a", ""), experiment(ramp=None)
REFUSED = [
    (lambda: start(SPEC, LIVE, 2, "a", ""), "it is running already: stop it first, or go to a step"),
    (lambda: go_to(SPEC, IDLE, 1, "a", "", 1), "it is idle: start it first"),
    (lambda: start(SPEC, IDLE, 1, "a", "", 4), "there is no step 4: the ramp has 1 to 3"),
    (lambda: hold(IDLE, 1, "a", ""), "it is idle: only one that is running can be held"),
    (lambda: resume(IDLE, 1, "a", ""), "it is idle: only one that is held goes on; name a step, or start it"),
    (lambda: stop(IDLE, 1, "a", ""), "it is idle: the rules' weights are in force already"),
    (lambda: promote(SPEC, IDLE, 1, "a", "", "nwe"), "there is no arm 'nwe': it has old, new"),
    (lambda: start(PLAIN, IDLE, 1, "a", ""), "its rules have no 'ramp': its weights are changed in the rules"),
]  # fmt: skip


@pytest.mark.parametrize("wish, expected", REFUSED)
def test_what_cannot_be_is_told(wish, expected) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CommandRefused) as refused:
        wish()
    assert str(refused.value) == expected


def test_rules_that_change_begin_anew() -> None:
    """A changed experiment is a new run; a ramp with `auto_start` starts again."""
    running = start(SPEC, IDLE, 1.0, "ann", "")
    fresh = RunState("g", weights_of(SPEC))
    idle = begin(SPEC, running, fresh, 5.0)
    assert (idle.status, idle.run, idle.revision, idle.shares) == (RunStatus.IDLE, 3, 3, {})
    automatic = experiment(ramp=replace(RAMP, auto_start=True))
    assert begin(automatic, None, fresh, 5.0).status is RunStatus.RUNNING
    assert begin(automatic, running, fresh, 5.0).revision == running.revision + 1
    assert begin(experiment(ramp=None, bandit=BanditSpec()), None, fresh, 5.0).shares == weights_of(SPEC)


def test_a_third_arm_has_nothing_while_a_ramp_runs() -> None:
    """The control gets all traffic that the growing arm does not have."""
    three = replace(SPEC, arms=(*SPEC.arms, ArmSpec("other", "c", 50.0)), control="old")
    assert shares_with(three, "new", 0.25) == {"old": 0.75, "new": 0.25, "other": 0.0}


def test_what_a_run_survives() -> None:
    """Weights and endpoints may change during a run; arms, ramp, guardrails and the engines' protocols may not."""
    engines = rules(SPEC).engines
    same = fingerprint(SPEC, engines)
    heavier = replace(SPEC, arms=(replace(SPEC.arms[0], weight=50.0), SPEC.arms[1]))
    assert fingerprint(heavier, engines) == same
    for other in (
        replace(SPEC, arms=(SPEC.arms[0], replace(SPEC.arms[1], model="m2"))),
        replace(SPEC, arms=(SPEC.arms[0], replace(SPEC.arms[1], engine="c"))),
        replace(SPEC, ramp=replace(RAMP, min_requests=1)),
        replace(SPEC, guardrails=SPEC.guardrails[:1]),
        replace(SPEC, salt="s"),
        replace(SPEC, alpha=0.01),
    ):
        assert fingerprint(other, engines) != same


def test_a_state_is_read_as_it_was_written() -> None:
    """Fields that a later version adds are ignored."""
    state = start(SPEC, IDLE, 10.0, "ann", "try it")
    assert read_state(write_state(state)) == state
    assert read_state(write_state(state).replace('"step"', '"later":1,"step"')) == state
    assert read_state("{}") is read_state("no") is read_state(b'{"status":"flying"}') is None
