"""The next action of a ramp (a table from the evidence to one action), and the updates of a bandit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.config.experiment_specs import BanditSpec, ExperimentSpec, RampSpec
from gateway.experiments.evidence import Evidence
from gateway.experiments.fuse import FuseTripped
from gateway.experiments.runs import RunState, RunStatus, Shares
from gateway.statistics.bandit import belief, best_chances, thompson

# Smaller moves are not made: a session that changes its arm costs more than they gain.
_LEAST_MOVE = 0.02
# Old evidence fades by periods; this many make a half-life.
_PARTS = 8


def is_due(bandit: BanditSpec, state: RunState, now: float, bandit_updated_at: float) -> bool:
    return state.status is RunStatus.RUNNING and now - max(bandit_updated_at, state.since) >= bandit.every


def update_shares(
    spec: ExperimentSpec, bandit: BanditSpec, state: RunState, evidence: Evidence, now: float
) -> tuple[Shares, str] | None:
    """The shares that the arms should have now, and why; equal ones without evidence. None: no change."""
    evidence.cut(now, bandit.half_life / _PARTS)
    beliefs = {}
    for arm in spec.arms:
        estimate = belief(bandit.metric, evidence.aged(arm.name, now), bandit.half_life)
        if estimate is None:
            return None
        beliefs[arm.name] = estimate
    goal = _goal(spec, bandit)
    shares = thompson(beliefs, bandit.min_share, bandit.max_share, goal)
    shares = {arm: round(share, 4) for arm, share in shares.items()}
    first = max(shares, key=lambda arm: shares[arm])
    shares[first] = round(shares[first] + 1.0 - sum(shares.values()), 6)
    if all(abs(shares[arm] - state.in_force.get(arm, 0.0)) < _LEAST_MOVE for arm in shares):
        return None
    chances = best_chances(beliefs, goal)
    summary = ", ".join(f"'{arm}' {chance:.1%} ({beliefs[arm].mean:.4g})" for arm, chance in chances.items())
    return shares, f"chances to have the best {bandit.metric}: {summary}"


def _goal(spec: ExperimentSpec, bandit: BanditSpec) -> str:
    """Fewer errors; higher feedback, unless the experiment's goal is lower."""
    if bandit.metric == "error_rate":
        return "lower"
    return spec.goal if spec.metric == bandit.metric else "higher"


class RampVerb(StrEnum):
    REST = "rest"
    ROLL_BACK = "roll_back"
    WAIT = "wait"
    ADVANCE = "advance"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Exposure:
    """The evidence on a ramp's arm in its step. `breaches` and `mismatch` are sentences, empty if all is well;
    `missing` names gateways without a report, `unmeasured` the guardrail metrics without a value, `unknown` has a
    sentence for each guardrail that is neither breached nor cleared."""

    requests: int
    breaches: Sequence[str] = ()
    mismatch: str = ""
    missing: Sequence[str] = ()
    tripped: FuseTripped | None = None
    unmeasured: Sequence[str] = ()
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RampAction:
    """The action and its reason, or what it waits for."""

    verb: RampVerb
    reason: str = ""


def decide(ramp: RampSpec, state: RunState, seen: Exposure, now: float) -> RampAction:
    """The next action, the first that applies:

    1. rest, if no ramp runs; 2. roll back, if the fuse has tripped or a guardrail is breached, even while the ramp is
    held; 3. wait, while it is held, counts are missing, there is a sample-ratio mismatch, the step has had too few
    requests or
       too little time, a guardrail has no values, or is not known to be kept (unless `require: unbreached`);
    4. finish, at the last step;
    5. advance.
    """
    if not state.status.is_live:
        return RampAction(RampVerb.REST)
    if seen.tripped is not None:
        return RampAction(RampVerb.ROLL_BACK, f"the fuse has blown: {seen.tripped}")
    if seen.breaches:
        return RampAction(RampVerb.ROLL_BACK, "; ".join(seen.breaches))
    if waits := _waits_for(ramp, state, seen, now):
        return RampAction(RampVerb.WAIT, waits)
    did = (
        f"{seen.requests} requests in {now - state.since:.0f} s at {_percent(ramp, state.step)}, no guardrail breached"
    )
    if state.step >= len(ramp.steps):
        return RampAction(RampVerb.FINISH, did)
    return RampAction(RampVerb.ADVANCE, did)


def _waits_for(ramp: RampSpec, state: RunState, seen: Exposure, now: float) -> str:
    """What the next step waits for; empty: nothing."""
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
    if seen.unknown and ramp.require == "known" and not waits:
        waits.append(f"guardrails that are not known yet (require: known): {'; '.join(seen.unknown)}")
    return " and ".join(waits)


def _percent(ramp: RampSpec, step: int) -> str:
    return f"{ramp.steps[step - 1] * 100:.4g}%"
