"""The next action of a ramp, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.experiments.fuse import FuseTripped
from gateway.experiments.ramp_policy import Exposure, RampVerb, decide
from gateway.experiments.runs import RunState, RunStatus
from tests.experiments.making import RAMP

BEGAN = 1000.0
ENOUGH = Exposure(100)
BLOWN = FuseTripped(20, 15, 2.0)
FAILED = "the fuse has blown: 15 of 20 requests failed in the last 2 s (75%)"
UNMEASURED = "a first value of per_token of 'new', for its guardrail"
ODD = "units that fall to the arms as they should: odd"

# status, step, exposure, seconds in the step -> action, and its reason or what it waits for
TABLE = [
    (RunStatus.IDLE, 0, ENOUGH, 60, RampVerb.REST, ""),
    (RunStatus.STOPPED, 0, ENOUGH, 60, RampVerb.REST, ""),
    (RunStatus.FINISHED, 3, Exposure(100, ["bad"], tripped=BLOWN), 60, RampVerb.REST, ""),
    (RunStatus.ROLLED_BACK, 1, Exposure(100, ["bad"]), 60, RampVerb.REST, ""),
    # Harm comes first, whatever else has been seen.
    (RunStatus.RUNNING, 1, Exposure(0, tripped=BLOWN), 0, RampVerb.ROLL_BACK, FAILED),
    (RunStatus.RUNNING, 1, Exposure(100, ["errors are up"]), 60, RampVerb.ROLL_BACK, "errors are up"),
    (
        RunStatus.RUNNING,
        1,
        Exposure(1, ["errors are up", "it is slow"]),
        0,
        RampVerb.ROLL_BACK,
        "errors are up; it is slow",
    ),
    (RunStatus.RUNNING, 3, Exposure(100, ["bad"]), 60, RampVerb.ROLL_BACK, "bad"),
    (RunStatus.RUNNING, 1, Exposure(100, ["bad"], "odd", ["b"]), 60, RampVerb.ROLL_BACK, "bad"),
    (RunStatus.HELD, 2, Exposure(100, ["bad"]), 60, RampVerb.ROLL_BACK, "bad"),
    (RunStatus.HELD, 2, Exposure(0, tripped=BLOWN), 0, RampVerb.ROLL_BACK, FAILED),
    # What holds the ramp at its step.
    (RunStatus.HELD, 1, ENOUGH, 60, RampVerb.WAIT, "held by ann"),
    (RunStatus.RUNNING, 1, Exposure(100, missing=["b", "c"]), 60, RampVerb.WAIT, "counts of b, c"),
    (RunStatus.RUNNING, 1, Exposure(100, mismatch="odd"), 60, RampVerb.WAIT, ODD),
    (RunStatus.RUNNING, 3, Exposure(100, mismatch="odd"), 60, RampVerb.WAIT, ODD),
    (RunStatus.RUNNING, 1, Exposure(40), 60, RampVerb.WAIT, "60 more requests of 'new'"),
    (RunStatus.RUNNING, 1, ENOUGH, 3, RampVerb.WAIT, "7 s more"),
    (RunStatus.RUNNING, 1, Exposure(99), 9, RampVerb.WAIT, "1 more requests of 'new' and 1 s more"),
    (RunStatus.RUNNING, 3, Exposure(100, unmeasured=["per_token"]), 60, RampVerb.WAIT, UNMEASURED),
    # What advances the ramp.
    (RunStatus.RUNNING, 1, ENOUGH, 10, RampVerb.ADVANCE, "100 requests in 10 s at 5%, no guardrail breached"),
    (RunStatus.RUNNING, 2, Exposure(5000), 60, RampVerb.ADVANCE, "5000 requests in 60 s at 25%, no guardrail breached"),
    (RunStatus.RUNNING, 3, ENOUGH, 10, RampVerb.FINISH, "100 requests in 10 s at 100%, no guardrail breached"),
]  # fmt: skip


def test_a_step_is_not_passed_while_a_guardrail_is_not_known() -> None:
    """By default a ramp stays, at its last step too, until each guardrail is known to be kept; `unbreached` relaxes
    that, and harm comes first."""
    seen = Exposure(5000, unknown=["error_rate of 'new' is 0.01 [-0.1, 0.1] more than the control's: max is 0.02"])
    for step in (1, 2, 3):
        state = RunState("f", {"old": 1.0, "new": 0.0}, RunStatus.RUNNING, step, since=BEGAN)
        action = decide(replace(RAMP, require="known"), state, seen, BEGAN + 60)
        assert action.verb is RampVerb.WAIT
        assert action.reason.startswith("guardrails that are not known yet (require: known): error_rate of 'new' is")
        assert decide(RAMP, state, seen, BEGAN + 60).verb is (RampVerb.FINISH if step == 3 else RampVerb.ADVANCE)
        breached = replace(seen, breaches=["errors are up"])
        assert decide(replace(RAMP, require="known"), state, breached, BEGAN + 60).verb is RampVerb.ROLL_BACK


@pytest.mark.parametrize("status, step, seen, seconds, verb, reason", TABLE)
def test_the_next_move(
    status: RunStatus, step: int, seen: Exposure, seconds: float, verb: RampVerb, reason: str
) -> None:
    """Harm ends a ramp at once; it waits for whatever is missing; else it advances."""
    state = RunState("f", {"old": 1.0, "new": 0.0}, status, step, since=BEGAN, by="ann")
    action = decide(RAMP, state, seen, BEGAN + seconds)
    assert (action.verb, action.reason) == (verb, reason)
