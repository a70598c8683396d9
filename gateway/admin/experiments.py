"""Experiments by the admin API: their state and decisions, and the commands that start, hold, ramp and end runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, Field

from gateway.admin.api_keys import Caller
from gateway.admin.auth import Admin, Operator, Viewer
from gateway.admin.errors import store_of, unknown
from gateway.admin.redis_query import query_redis
from gateway.config.experiment_specs import ExperimentSpec
from gateway.events.event_bus import SENDER_ADMIN, publish_command
from gateway.events.event_types import SessionMoved
from gateway.experiments import runs
from gateway.experiments.experiment_state import ExperimentState
from gateway.experiments.runs import CommandRefused, RunState
from gateway.protocol.sequence import record_name
from gateway.redis.command import Command, StoreError
from gateway.routing.assignment import arm_token
from gateway.sessions.session import arm_field, session_key
from gateway.supervision.control_plane import ControlPlane

Json = dict[str, Any]
T = TypeVar("T")
Traffic = tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]  # requests and errors, by experiment and arm
Change = Callable[..., RunState]  # of the spec, the run, the time, the author and the reason

_PATH = "/experiments/{name}"
# An experiment's own decisions are searched among this number of the newest ones.
_DECISIONS = 200
_ERRORS: dict[int | str, dict[str, Any]] = {
    404: {"description": "no such experiment, or arm"},
    409: {"description": "its run cannot do that now"},
    503: {"description": "what gateways share cannot be reached"},
}


class CommandReason(BaseModel):
    """The reason, for the decision log."""

    reason: Annotated[str, Field(max_length=1000)] = ""


class StepRequest(CommandReason):
    """`step` is counted from 1."""

    step: Annotated[int | None, Field(ge=1, le=1000)] = None


class PromoteRequest(CommandReason):
    """The arm that gets all units."""

    arm: str


class ForceRequest(CommandReason):
    """A session, and its arm from its next request on; null: the arm of its hash. `tenant` is that of the session,
    where the rules have `auth:`."""

    unit: Annotated[str, Field(min_length=1)]
    tenant: str = ""
    arm: str | None = None


def add_experiments(app: FastAPI, control: ControlPlane) -> None:
    _add_commands(app, control)
    experiments = control.experiments

    @app.get("/experiments", tags=["experiments"])
    async def list_experiments(_: Viewer) -> Json:
        """Every experiment: arms with shares and traffic, comparisons, guardrails, the state of its run."""
        traffic = await _traffic(control)
        return {"experiments": [_with_traffic(each, traffic) for each in experiments.experiments_json()]}

    @app.get(_PATH, tags=["experiments"], responses=_ERRORS)
    async def show_experiment(name: str, _: Viewer) -> Json:
        """One experiment with its decisions, the newest first, and its time series."""
        series = await _carried_out(control, name, experiments.history(name))
        traffic = await _traffic(control)
        decisions: list[Json] = []
        with suppress(StoreError):  # the rest is known without Redis
            decisions = [each for each in await experiments.decisions(_DECISIONS) if each.get("experiment") == name]
        return {**_with_traffic(experiments.experiment_json(name), traffic), "decisions": decisions, "series": series}

    @app.get(f"{_PATH}/history", tags=["experiments"], responses=_ERRORS)
    async def show_history(
        name: str,
        _: Viewer,
        since: Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds since 1970.")] = 0.0,
    ) -> Json:
        """The time series since then: shares, and each metric's intervals."""
        return {"series": await _carried_out(control, name, experiments.history(name, since))}

    @app.get(f"{_PATH}/evidence", tags=["experiments"], responses=_ERRORS)
    async def show_evidence(name: str, _: Viewer) -> Json:
        """The counts of the run that comparisons are computed from: by period of constant shares, arm and bucket of
        units. Lists have a number for each of 64 buckets, zeros are left out."""
        periods = await _carried_out(control, name, experiments.evidence(name))
        shown = experiments.experiment_json(name)
        return {
            **{key: shown[key] for key in ("name", "unit", "control", "metric", "goal", "alpha")},
            "periods": periods,
        }

    @app.get("/decisions", tags=["experiments"], responses={503: _ERRORS[503]})
    async def list_decisions(_: Viewer, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Json:
        """The decisions on all experiments, the newest first: time, author, reason and figures."""
        return {"decisions": list(await experiments.decisions(limit))}


def _add_commands(app: FastAPI, control: ControlPlane) -> None:
    def command(name: str, caller: Caller, body: CommandReason | None, action: str, change: Change) -> Awaitable[Json]:
        reason = body.reason if body else ""

        def changed(state: ExperimentState, run: RunState, now: float) -> RunState:
            return change(state.spec, run, now, caller.name, reason)

        return _carried_out(control, name, control.experiments.command(name, action, changed, caller.name, reason))

    @app.post(f"{_PATH}/start", tags=["experiments"], responses=_ERRORS)
    async def start(name: str, caller: Operator, body: StepRequest | None = None) -> Json:
        """Begin the ramp, at its first step or at another one; or the bandit."""
        step = (body.step if body else None) or 1
        return await command(name, caller, body, "started", partial(runs.start, step=step))

    @app.post(f"{_PATH}/ramp", tags=["experiments"], responses=_ERRORS)
    async def ramp(name: str, caller: Operator, body: StepRequest | None = None) -> Json:
        """Go to a step, forward or back, and continue from there; without a step: continue after a hold."""
        step = body.step if body else None
        if step is None:
            return await command(name, caller, body, "resumed", lambda spec, *run: runs.resume(*run))
        return await command(name, caller, body, "stepped", partial(runs.go_to, step=step))

    @app.post(f"{_PATH}/hold", tags=["experiments"], responses=_ERRORS)
    async def hold(name: str, caller: Operator, body: CommandReason | None = None) -> Json:
        """Stay at this step until the next command; a guardrail still ends the run."""
        return await command(name, caller, body, "held", lambda spec, *run: runs.hold(*run))

    @app.post(f"{_PATH}/stop", tags=["experiments"], responses=_ERRORS)
    async def stop(name: str, caller: Operator, body: CommandReason | None = None) -> Json:
        """End the run: the rules' weights apply."""
        return await command(name, caller, body, "stopped", lambda spec, *run: runs.stop(*run))

    @app.post(f"{_PATH}/promote", tags=["experiments"], responses=_ERRORS)
    async def promote(name: str, body: PromoteRequest, caller: Admin) -> Json:
        """End the run: one arm gets all units, and the rules are changed to say so."""
        return await command(name, caller, body, "promoted", partial(runs.promote, arm=body.arm))

    @app.post(f"{_PATH}/rollback", tags=["experiments"], responses=_ERRORS)
    async def rollback(name: str, caller: Operator, body: CommandReason | None = None) -> Json:
        """End the run: the control gets all units, and the rules are changed to say so. While Redis is away, the other
        gateways follow later."""
        try:
            return await command(name, caller, body, "rolled_back", runs.roll_back)
        except StoreError:
            reason = body.reason if body else ""
            return await _carried_out(control, name, control.experiments.roll_back_anyway(name, caller.name, reason))

    @app.post(f"{_PATH}/force", tags=["experiments"], responses=_ERRORS)
    async def force(name: str, body: ForceRequest, caller: Operator) -> Json:
        """Assign a session to an arm instead of its hash's, while the arm has a share."""
        spec = control.book.rules.experiments.get(name)
        if spec is None:
            raise unknown("experiment", name, control.book.rules.experiments)
        await _force(control, spec, body)
        figures = {"unit": body.unit, "arm": body.arm}
        await control.experiments.record(name, "forced", caller.name, body.reason, figures)
        return {"experiment": name, "unit": body.unit, "arm": body.arm}


async def _carried_out(control: ControlPlane, name: str, call: Awaitable[T]) -> T:
    """Raises: HTTPException where there is no such experiment, or its run refuses the command."""
    try:
        return await call
    except KeyError as error:
        raise unknown("experiment", name, control.book.rules.experiments) from error
    except CommandRefused as error:
        raise HTTPException(409, f"experiment '{name}': {error}") from error


async def _force(control: ControlPlane, spec: ExperimentSpec, body: ForceRequest) -> None:
    """Raises: HTTPException."""
    names = [arm.name for arm in spec.arms]
    if body.arm is not None and body.arm not in names:
        raise HTTPException(404, f"experiment '{spec.name}' has no arm '{body.arm}'; it has {', '.join(names)}")
    if spec.unit != "session":
        raise HTTPException(
            409, f"experiment '{spec.name}' has unit '{spec.unit}': only sessions keep an arm of their own"
        )
    session = record_name(body.unit, body.tenant if control.book.rules.auth is not None else None)
    key, field = session_key(session), arm_field(spec.name)
    ttl = max(1, int(control.book.rules.identity.session_ttl))
    if body.arm is None:
        change: Command = ("HDEL", key, field)
    else:
        is_control = body.arm == spec.control_arm.name
        run = 0 if is_control else control.experiments.run_of(spec.name)
        change = ("HSET", key, field, arm_token(body.arm, run))
    moved = publish_command(SENDER_ADMIN, SessionMoved(session))
    await query_redis(store_of(control, "sessions"), change, ("EXPIRE", key, ttl), moved)


async def _traffic(control: ControlPlane) -> Traffic:
    """Requests and errors of arms since the workers started, over all runs."""
    state = await control.exposition()
    experiments = {route.name: route.experiment for route in control.book.rules.routes}
    requests: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    for key, series in state.series.items():
        arm = (experiments.get(key.route) or "", key.arm)
        requests[arm] += sum(series.statuses.values())
        errors[arm] += sum(series.errors.values())
    return requests, errors


def _with_traffic(experiment: Json, traffic: Traffic) -> Json:
    requests, errors = traffic
    name = experiment["name"]
    arms = [
        {**arm, "requests": requests[name, arm["name"]], "errors": errors[name, arm["name"]]}
        for arm in experiment["arms"]
    ]
    return {**experiment, "arms": arms}
