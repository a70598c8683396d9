"""What a ramp does next: a table, from what is known of its arm to one action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.config.experiment_specs import BanditSpec, ExperimentSpec, RampSpec
from gateway.experiments.evidence import Evidence
from gateway.experiments.fuse import Blown
from gateway.experiments.runs import RunState, RunStatus, Shares
from gateway.statistics.bandit import belief, best_chances, thompson

# Shares that would move by less stay: a session that changes its arm costs more than that gains.
_LEAST_MOVE = 0.02
# What is old fades by parts; of one so many a half-life lasts.
_PARTS = 8


@dataclass(frozen=True, slots=True)
class Thought:
    """`shares` None: they stay as they are."""

    shares: Shares | None
    reason: str = ""


def is_due(bandit: BanditSpec, state: RunState, now: float, thought_at: float) -> bool:
    return state.status is RunStatus.RUNNING and now - max(thought_at, state.since) >= bandit.every


def think(spec: ExperimentSpec, bandit: BanditSpec, state: RunState, evidence: Evidence, now: float) -> Thought:
    """Which shares the arms should have now. Equal ones, where nothing is known yet."""
    evidence.cut(now, bandit.half_life / _PARTS)
    beliefs = {}
    for arm in spec.arms:
        known = belief(bandit.metric, evidence.aged(arm.name, now), bandit.half_life)
        if known is None:
            return Thought(None)
        beliefs[arm.name] = known
    goal = _goal(spec, bandit)
    shares = thompson(beliefs, bandit.min_share, bandit.max_share, goal)
    shares = {arm: round(share, 4) for arm, share in shares.items()}
    first = max(shares, key=lambda arm: shares[arm])
    shares[first] = round(shares[first] + 1.0 - sum(shares.values()), 6)
    if all(abs(shares[arm] - state.in_force.get(arm, 0.0)) < _LEAST_MOVE for arm in shares):
        return Thought(None)
    chances = best_chances(beliefs, goal)
    told = ", ".join(f"'{arm}' {chance:.1%} ({beliefs[arm].mean:.4g})" for arm, chance in chances.items())
    return Thought(shares, f"chances to have the best {bandit.metric}: {told}")


def _goal(spec: ExperimentSpec, bandit: BanditSpec) -> str:
    """Fewer errors; more of what clients say, unless the experiment says that less is better."""
    if bandit.metric == "error_rate":
        return "lower"
    return spec.goal if spec.metric == bandit.metric else "higher"


class Verb(StrEnum):
    REST = "rest"
    ROLL_BACK = "roll_back"
    WAIT = "wait"
    ADVANCE = "advance"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Exposure:
    """What is known of a ramp's arm in its step. `breaches` and `mismatch` are sentences, empty where all is well;
    `missing` names who has not told what it counted, `unmeasured` the guardrails' metrics of which the arm has no
    value."""

    requests: int
    breaches: Sequence[str] = ()
    mismatch: str = ""
    missing: Sequence[str] = ()
    blown: Blown | None = None
    unmeasured: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What to do, and why, or what is waited for."""

    verb: Verb
    reason: str = ""


def decide(ramp: RampSpec, state: RunState, seen: Exposure, now: float) -> Action:
    """The next move, the first of these that applies:

    1. nothing, where no ramp runs;
    2. back, where the fuse has blown or a guardrail is breached, even while the ramp is held;
    3. none, while it is held, counts are missing, units do not fall to the arms as they should, or the step has had too
       few requests or too little time, or a guardrail has nothing at all to judge by;
    4. the end, at the last step;
    5. the next step. A guardrail that is not breached need not be cleared yet: exposure is what clears it.
    """
    if not state.status.is_live:
        return Action(Verb.REST)
    if seen.blown is not None:
        return Action(Verb.ROLL_BACK, f"the fuse has blown: {seen.blown}")
    if seen.breaches:
        return Action(Verb.ROLL_BACK, "; ".join(seen.breaches))
    if waits := _waits_for(ramp, state, seen, now):
        return Action(Verb.WAIT, waits)
    did = (
        f"{seen.requests} requests in {now - state.since:.0f} s at {_percent(ramp, state.step)}, no guardrail breached"
    )
    if state.step >= len(ramp.steps):
        return Action(Verb.FINISH, did)
    return Action(Verb.ADVANCE, did)


def _waits_for(ramp: RampSpec, state: RunState, seen: Exposure, now: float) -> str:
    """What has to come before the next step; empty: nothing."""
    if state.status is RunStatus.HELD:
        return f"held by {state.by}"
    if seen.missing:
        return f"counts of {', '.join(seen.missing)}"
    if seen.mismatch:
        return f"units that fall to the arms as they should: {seen.mismatch}"
    waits = []
    if seen.requests < ramp.min_requests:
        waits.append(f"{ramp.min_requests - seen.requests} more requests of '{ramp.arm}'")
    if now - state.since < ramp.min_time:
        waits.append(f"{ramp.min_time - (now - state.since):.0f} s more")
    if seen.unmeasured and not waits:
        waits.append(f"a first value of {', '.join(seen.unmeasured)} of '{ramp.arm}', for its guardrail")
    return " and ".join(waits)


def _percent(ramp: RampSpec, step: int) -> str:
    return f"{ramp.steps[step - 1] * 100:.4g}%"
