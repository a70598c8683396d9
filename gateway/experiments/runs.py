"""The run of an experiment: status, step and shares. An immutable value, the same on all gateways that share a
Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from hashlib import sha256

from gateway.config.experiment_specs import ExperimentSpec
from gateway.config.specs import EngineSpec

Shares = Mapping[str, float]  # by arm; they sum to 1

ITSELF = "the ramp"  # the actor of automatic decisions
# Shares are written in decimal.
_ROUNDING = 1e-6


class RunStatus(StrEnum):
    """The status of a run. While it is idle or stopped, the rules' weights are active, otherwise its own shares."""

    IDLE = "idle"
    RUNNING = "running"
    HELD = "held"  # does not advance; fuse and guardrails stay active
    FINISHED = "finished"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"

    @property
    def is_live(self) -> bool:
        return self in (RunStatus.RUNNING, RunStatus.HELD)


@dataclass(frozen=True, slots=True)
class RunState:
    """`run` numbers the runs: earlier evidence does not count. `turn` numbers the changes of shares: counts of
    different turns are not added up. `revision` numbers all changes."""

    fingerprint: str  # of its rules
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
    """Returns None for a state of an incompatible version."""
    try:
        data = json.loads(text)
        values = {each.name: data[each.name] for each in fields(RunState) if each.name in data}
        return RunState(**{**values, "status": RunStatus(values["status"])})
    except (ValueError, TypeError, KeyError):
        return None


def weights_of(spec: ExperimentSpec) -> dict[str, float]:
    """The rules' weights, as shares."""
    total = sum(arm.weight for arm in spec.arms)
    return {arm.name: round(arm.weight / total, 9) for arm in spec.arms}


def are_same(one: Shares, other: Shares) -> bool:
    return one.keys() == other.keys() and all(abs(one[arm] - other[arm]) < _ROUNDING for arm in one)


def shares_with(spec: ExperimentSpec, arm: str, share: float) -> dict[str, float]:
    """The shares of a ramp: `share` for one arm, the rest for the control, nothing for others."""
    control = spec.control_arm.name
    rest = {control: round(1.0 - share, 9)} if arm != control else {}
    return {each.name: 0.0 for each in spec.arms} | rest | {arm: share}


def fingerprint(spec: ExperimentSpec, engines: Mapping[str, EngineSpec]) -> str:
    """A digest of everything whose change ends a run: the arms and their evaluation. Weights and endpoints may
    change."""
    arms = [
        (arm.name, arm.engine, arm.model, engines[arm.engine].protocol.value if arm.engine in engines else "")
        for arm in spec.arms
    ]
    split = (spec.unit, spec.salt, spec.control_arm.name, spec.layer, spec.share)
    verdict = (spec.metric, spec.goal, spec.alpha, [_without_place(each) for each in spec.guardrails])
    return sha256(repr((arms, split, verdict, spec.ramp, spec.bandit)).encode()).hexdigest()[:16]


def _without_place(guardrail: object) -> dict[str, object]:
    data = asdict(guardrail)  # type: ignore[call-overload]
    return {name: value for name, value in data.items() if name != "location"}
