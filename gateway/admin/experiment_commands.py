"""What operators have become of experiments, by the admin API: started, held, ramped, ended; sessions forced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from gateway.admin.auth import Admin, Caller, Operator
from gateway.admin.redis_errors import PATIENCE_SECONDS, HasStore, answered, store_of
from gateway.config.experiment_specs import ExperimentSpec
from gateway.config.specs import RulesSpec
from gateway.events.event_types import SessionMoved, write_item
from gateway.events.redis_stream import add
from gateway.experiments import commands
from gateway.experiments.commands import CommandRefused
from gateway.experiments.controller import ExperimentController
from gateway.experiments.experiment_state import ExperimentState
from gateway.experiments.runs import RunState
from gateway.protocol.sequence import bounded
from gateway.redis.errors import StoreError
from gateway.redis.script import Command
from gateway.routing.assignment import arm_token
from gateway.sessions.redis_keys import session_key
from gateway.sessions.session import arm_field

Json = dict[str, Any]

_SENDER = "admin"
REFUSALS: dict[int | str, dict[str, Any]] = {
    404: {"description": "no such experiment, or arm"},
    409: {"description": "its run cannot do that now"},
    503: {"description": "what gateways share cannot be reached"},
}


class CommandState(HasStore, Protocol):
    """Whoever knows what experiments are declared, and their runs."""

    @property
    def rules(self) -> RulesSpec: ...

    @property
    def experiments(self) -> ExperimentController: ...


class CommandReason(BaseModel):
    """Why; it stands in the record."""

    reason: Annotated[str, Field(max_length=1000)] = ""


class StepWish(CommandReason):
    """`step` is counted from 1."""

    step: Annotated[int | None, Field(ge=1, le=1000)] = None


class PromoteWish(CommandReason):
    """Which arm gets all."""

    arm: str


class ForceWish(CommandReason):
    """A session, and the arm that it has from its next request on; null: the one that falls to it."""

    unit: Annotated[str, Field(min_length=1)]
    arm: str | None = None


def add_commands(app: FastAPI, state: CommandState) -> None:
    """Answer for POST `/experiments/{name}/...`."""
    at = "/experiments/{name}"

    @app.post(f"{at}/start", tags=["experiments"], responses=REFUSALS)
    async def start(name: str, caller: Operator, wish: StepWish | None = None) -> Json:
        """Begin the ramp, at its first step or at another one; or the bandit."""
        wish = wish or StepWish()

        def change(trial: ExperimentState, run: RunState, now: float) -> RunState:
            return commands.start(trial.spec, run, now, caller.name, wish.reason, wish.step or 1)

        return await _changed(state, name, "started", change, caller, wish.reason)

    @app.post(f"{at}/ramp", tags=["experiments"], responses=REFUSALS)
    async def ramp(name: str, caller: Operator, wish: StepWish | None = None) -> Json:
        """Go to a step, forward or back, and on from there; without one: go on after a hold."""
        wish = wish or StepWish()

        def change(trial: ExperimentState, run: RunState, now: float) -> RunState:
            if wish.step is None:
                return commands.resume(run, now, caller.name, wish.reason)
            return commands.go_to(trial.spec, run, now, caller.name, wish.reason, wish.step)

        action = "resumed" if wish.step is None else "stepped"
        return await _changed(state, name, action, change, caller, wish.reason)

    @app.post(f"{at}/hold", tags=["experiments"], responses=REFUSALS)
    async def hold(name: str, caller: Operator, wish: CommandReason | None = None) -> Json:
        """Stay at this step, until somebody says otherwise or harm is seen."""
        wish = wish or CommandReason()

        def change(trial: ExperimentState, run: RunState, now: float) -> RunState:
            return commands.hold(run, now, caller.name, wish.reason)

        return await _changed(state, name, "held", change, caller, wish.reason)

    @app.post(f"{at}/stop", tags=["experiments"], responses=REFUSALS)
    async def stop(name: str, caller: Operator, wish: CommandReason | None = None) -> Json:
        """End the run: the rules' weights are in force."""
        wish = wish or CommandReason()

        def change(trial: ExperimentState, run: RunState, now: float) -> RunState:
            return commands.stop(run, now, caller.name, wish.reason)

        return await _changed(state, name, "stopped", change, caller, wish.reason)

    @app.post(f"{at}/promote", tags=["experiments"], responses=REFUSALS)
    async def promote(name: str, wish: PromoteWish, caller: Admin) -> Json:
        """End the run: one arm has all, and the rules say so."""

        def change(trial: ExperimentState, run: RunState, now: float) -> RunState:
            return commands.promote(trial.spec, run, now, caller.name, wish.reason, wish.arm)

        return await _changed(state, name, "promoted", change, caller, wish.reason)

    @app.post(f"{at}/rollback", tags=["experiments"], responses=REFUSALS)
    async def rollback(name: str, caller: Operator, wish: CommandReason | None = None) -> Json:
        """End the run: the control has all, and the rules say so. While Redis is away, others do so later."""
        wish = wish or CommandReason()

        def change(trial: ExperimentState, run: RunState, now: float) -> RunState:
            return commands.roll_back(trial.spec, run, now, caller.name, wish.reason)

        try:
            return await _changed(state, name, "rolled_back", change, caller, wish.reason)
        except HTTPException as error:
            if error.status_code != 503:
                raise
            return await _obeyed(state, name, state.experiments.roll_back_anyway(name, caller.name, wish.reason))

    @app.post("/experiments/{name}/force", tags=["experiments"], responses=REFUSALS)
    async def force(name: str, wish: ForceWish, caller: Operator) -> Json:
        """Have a session in an arm, whatever its hash says, while the arm has a share."""
        spec = _spec(state, name)
        await _force(state, spec, wish)
        numbers = {"unit": wish.unit, "arm": wish.arm}
        await answered(state.experiments.record(name, "forced", caller.name, wish.reason, numbers))
        return {"experiment": name, "unit": wish.unit, "arm": wish.arm}


async def _changed(
    state: CommandState,
    name: str,
    action: str,
    change: Callable[[ExperimentState, RunState, float], RunState],
    caller: Caller,
    reason: str,
) -> Json:
    return await _obeyed(state, name, state.experiments.command(name, action, change, caller.name, reason))


async def _obeyed(state: CommandState, name: str, asking: Any) -> Json:
    """Raises: HTTPException where that cannot be."""
    try:
        told: Json = await asking
    except KeyError as error:
        raise unknown(state, name) from error
    except CommandRefused as error:
        raise HTTPException(409, f"experiment '{name}': {error}") from error
    except StoreError as error:
        raise HTTPException(503, str(error)) from error
    return told


def unknown(state: CommandState, name: str) -> HTTPException:
    known = ", ".join(state.rules.experiments) or "none"
    return HTTPException(404, f"there is no experiment '{name}'; there are {known}")


def _spec(state: CommandState, name: str) -> ExperimentSpec:
    spec = state.rules.experiments.get(name)
    if spec is None:
        raise unknown(state, name)
    return spec


async def _force(state: CommandState, spec: ExperimentSpec, wish: ForceWish) -> None:
    """Raises: HTTPException."""
    names = [arm.name for arm in spec.arms]
    if wish.arm is not None and wish.arm not in names:
        raise HTTPException(404, f"experiment '{spec.name}' has no arm '{wish.arm}'; it has {', '.join(names)}")
    if spec.unit != "session":
        raise HTTPException(
            409, f"experiment '{spec.name}' has unit '{spec.unit}': only sessions keep an arm of their own"
        )
    key, field = session_key(wish.unit), arm_field(spec.name)
    ttl = max(1, int(state.rules.identity.session_ttl))
    if wish.arm is None:
        change: Command = ("HDEL", key, field)
    else:
        is_control = wish.arm == spec.control_arm.name
        told = arm_token(wish.arm, 0 if is_control else state.experiments.run_of(spec.name))
        change = ("HSET", key, field, told)
    news = add(_SENDER, *write_item(SessionMoved(bounded(wish.unit))))
    asked = store_of(state, "sessions").ask([change, ("EXPIRE", key, ttl), news], PATIENCE_SECONDS)
    for answer in await answered(asked):
        if isinstance(answer, Exception):
            raise HTTPException(503, f"Redis refuses: {answer}")
