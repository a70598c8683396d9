"""An experiment's run: whether its ramp goes on, at which step, and which shares its arms have. One value, made anew
with each change, the same for all gateways that share a Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from hashlib import sha256

from gateway.config.experiment_specs import ExperimentSpec
from gateway.config.specs import EngineSpec

Shares = Mapping[str, float]  # by arm; they sum to 1

ITSELF = "the ramp"  # who decides where no operator does
# Shares are written in decimal.
_ROUNDING = 1e-6


class RunStatus(StrEnum):
    """Where a run stands. The rules' weights are in force while it is idle or stopped, its own shares else."""

    IDLE = "idle"
    RUNNING = "running"
    HELD = "held"  # no step forward; what protects users still does
    FINISHED = "finished"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"

    @property
    def is_live(self) -> bool:
        return self in (RunStatus.RUNNING, RunStatus.HELD)


@dataclass(frozen=True, slots=True)
class RunState:
    """`run` counts lives: evidence of an earlier one does not count. `turn` counts changes of the shares: what was
    counted in different turns is not added up. `revision` counts changes of anything."""

    fingerprint: str  # of the rules that it runs by
    weights: Shares  # those of the rules when the run began, as shares
    status: RunStatus = RunStatus.IDLE
    step: int = 0  # of the ramp, counted from 1; 0 where none has begun
    shares: Shares = field(default_factory=dict)  # empty: the rules' weights
    run: int = 1
    turn: int = 1
    revision: int = 0
    since: float = 0.0  # when the step or the status began, seconds since 1970
    by: str = ""
    reason: str = ""

    @property
    def in_force(self) -> Shares:
        return self.shares or self.weights


def write_state(state: RunState) -> str:
    return json.dumps(asdict(state), separators=(",", ":"))


def read_state(text: str | bytes) -> RunState | None:
    """None where another version wrote what cannot be read here."""
    try:
        told = json.loads(text)
        known = {each.name: told[each.name] for each in fields(RunState) if each.name in told}
        return RunState(**{**known, "status": RunStatus(known["status"])})
    except (ValueError, TypeError, KeyError):
        return None


def weights_of(spec: ExperimentSpec) -> dict[str, float]:
    """The rules' weights, as shares."""
    total = sum(arm.weight for arm in spec.arms)
    return {arm.name: round(arm.weight / total, 9) for arm in spec.arms}


def are_same(one: Shares, other: Shares) -> bool:
    return one.keys() == other.keys() and all(abs(one[arm] - other[arm]) < _ROUNDING for arm in one)


def shares_with(spec: ExperimentSpec, arm: str, share: float) -> dict[str, float]:
    """One arm has this share and the control the rest: where a ramp runs, others have nothing."""
    control = spec.control_arm.name
    rest = {control: round(1.0 - share, 9)} if arm != control else {}
    return {each.name: 0.0 for each in spec.arms} | rest | {arm: share}


def fingerprint(spec: ExperimentSpec, engines: Mapping[str, EngineSpec]) -> str:
    """What a run must not survive a change of: who the arms are, and how they are judged. Weights may change, and
    endpoints come and go."""
    arms = [
        (arm.name, arm.engine, arm.model, engines[arm.engine].protocol.value if arm.engine in engines else "")
        for arm in spec.arms
    ]
    split = (spec.unit, spec.salt, spec.control_arm.name, spec.layer, spec.share)
    verdict = (spec.metric, spec.goal, spec.alpha, [_without_place(each) for each in spec.guardrails])
    return sha256(repr((arms, split, verdict, spec.ramp, spec.bandit)).encode()).hexdigest()[:16]


def _without_place(guardrail: object) -> dict[str, object]:
    told = asdict(guardrail)  # type: ignore[call-overload]
    return {name: value for name, value in told.items() if name != "location"}
