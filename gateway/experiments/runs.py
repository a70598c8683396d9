"""The run of an experiment: status, step and shares. An immutable value, the same on all gateways that share a
Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from hashlib import sha256

from gateway.config.engine_specs import EngineSpec
from gateway.config.experiment_specs import ExperimentSpec
from gateway.protocol.stored_json import read_json_object

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
        data = read_json_object(text)
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
    guardrails = [
        {name: value for name, value in asdict(each).items() if name != "location"} for each in spec.guardrails
    ]
    split = (spec.unit, spec.salt, spec.control_arm.name, spec.layer, spec.share)
    verdict = (spec.metric, spec.goal, spec.alpha, guardrails)
    return sha256(repr((arms, split, verdict, spec.ramp, spec.bandit)).encode()).hexdigest()[:16]


class CommandRefused(Exception):  # noqa: N818
    """A run cannot do that now; the message says why."""


def changed(
    state: RunState, status: RunStatus, now: float, by: str, reason: str, shares: Shares | None = None
) -> RunState:
    """The next state; `shares` None: unchanged."""
    is_unchanged = shares is None or shares == state.shares
    return replace(
        state,
        status=status,
        shares=state.shares if shares is None else shares,
        turn=state.turn if is_unchanged else state.turn + 1,
        revision=state.revision + 1,
        since=now,
        by=by,
        reason=reason,
    )


def start(spec: ExperimentSpec, state: RunState, now: float, by: str, reason: str, step: int = 1) -> RunState:
    """Start at a step, without earlier evidence."""
    if state.status.is_live:
        raise CommandRefused(f"it is {state.status} already: stop it first, or go to a step")
    if spec.bandit is not None:
        begun = changed(state, RunStatus.RUNNING, now, by, reason, state.weights)
        return replace(begun, run=state.run + 1, turn=state.turn + 1, step=0)
    begun = go_to(spec, replace(state, status=RunStatus.RUNNING), now, by, reason, step)
    return replace(begun, run=state.run + 1, turn=state.turn + 1)


def go_to(spec: ExperimentSpec, state: RunState, now: float, by: str, reason: str, step: int) -> RunState:
    """Go to a step of the ramp, forward or back, and continue from there."""
    ramp = spec.ramp
    if ramp is None:
        raise CommandRefused("its rules have no 'ramp': its weights are changed in the rules")
    if not state.status.is_live:
        raise CommandRefused(f"it is {state.status}: start it first")
    if not 1 <= step <= len(ramp.steps):
        raise CommandRefused(f"there is no step {step}: the ramp has 1 to {len(ramp.steps)}")
    shares = shares_with(spec, ramp.arm, ramp.steps[step - 1])
    return replace(changed(state, RunStatus.RUNNING, now, by, reason, shares), step=step)


def hold(state: RunState, now: float, by: str, reason: str) -> RunState:
    if state.status is not RunStatus.RUNNING:
        raise CommandRefused(f"it is {state.status}: only one that is running can be held")
    return replace(changed(state, RunStatus.HELD, now, by, reason), since=state.since)


def resume(state: RunState, now: float, by: str, reason: str) -> RunState:
    """Continue a held run; the time on hold counts as time in the step."""
    if state.status is not RunStatus.HELD:
        raise CommandRefused(f"it is {state.status}: only one that is held goes on; name a step, or start it")
    return replace(changed(state, RunStatus.RUNNING, now, by, reason), since=state.since)


def stop(state: RunState, now: float, by: str, reason: str) -> RunState:
    """Return to the rules' weights."""
    if not state.shares and state.status is not RunStatus.RUNNING:
        raise CommandRefused(f"it is {state.status}: the rules' weights are in force already")
    return replace(changed(state, RunStatus.STOPPED, now, by, reason, {}), step=0)


def roll_back(spec: ExperimentSpec, state: RunState, now: float, by: str, reason: str) -> RunState:
    """Give everything to the control arm."""
    shares = shares_with(spec, spec.control_arm.name, 1.0)
    return changed(state, RunStatus.ROLLED_BACK, now, by, reason, shares)


def finish(state: RunState, now: float, by: str, reason: str) -> RunState:
    """End with the shares of the last step."""
    return changed(state, RunStatus.FINISHED, now, by, reason)


def promote(spec: ExperimentSpec, state: RunState, now: float, by: str, reason: str, arm: str) -> RunState:
    """Give everything to one arm."""
    names = [each.name for each in spec.arms]
    if arm not in names:
        raise CommandRefused(f"there is no arm '{arm}': it has {', '.join(names)}")
    return changed(state, RunStatus.FINISHED, now, by, reason, shares_with(spec, arm, 1.0))


def begin(spec: ExperimentSpec, before: RunState | None, fresh: RunState, now: float) -> RunState:
    """The initial state of a new experiment, or of one whose rules have changed."""
    if before is not None:
        fresh = replace(fresh, run=before.run + 1, turn=before.turn + 1, revision=before.revision)
    fresh = replace(fresh, revision=fresh.revision + 1, since=now, by="rules")
    is_automatic = spec.bandit is not None or (spec.ramp is not None and spec.ramp.auto_start)
    if not is_automatic:
        return fresh
    begun = start(spec, fresh, now, "rules", "the rules start it")
    return replace(begun, revision=fresh.revision)
