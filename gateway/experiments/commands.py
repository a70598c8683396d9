"""The changes of a run, each a function from the old to the new state; an impossible one raises an error that lists
what is possible."""

from __future__ import annotations

from dataclasses import replace

from gateway.config.experiment_specs import ExperimentSpec, RampSpec
from gateway.experiments.runs import RunState, RunStatus, Shares, shares_with


class CommandRefused(Exception):  # noqa: N818
    """A run cannot do that now; the message says why."""


def changed(
    state: RunState, status: RunStatus, now: float, by: str, reason: str, shares: Shares | None = None
) -> RunState:
    """The next state; `shares` None: unchanged."""
    kept = shares is None or shares == state.shares
    return replace(
        state,
        status=status,
        shares=state.shares if shares is None else shares,
        turn=state.turn if kept else state.turn + 1,
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
    ramp = ramp_of(spec)
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


def ramp_of(spec: ExperimentSpec) -> RampSpec:
    if spec.ramp is None:
        raise CommandRefused("its rules have no 'ramp': its weights are changed in the rules")
    return spec.ramp
