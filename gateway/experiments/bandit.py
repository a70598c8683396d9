"""The bandit: now and then shares go to the arms by the chance of each to be the best, within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.experiment_specs import BanditSpec, ExperimentSpec
from gateway.experiments.evidence import Evidence
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
