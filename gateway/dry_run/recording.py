"""Recordings of traffic and their file format; requests described by people.

A recording is a file of JSON lines: a header, one decision per line, and a trailer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.config.specs import IdentitySpec, RequestSpec, TensorSpec
from gateway.protocol.datatypes import data_bytes
from gateway.protocol.operations import FLEET_OPERATIONS, Operation
from gateway.protocol.principal import Principal
from gateway.routing.assignment import Forced
from gateway.routing.decision import BodyFacts, Decision, Facts, InputFacts, Target, Undecided
from gateway.routing.table import Table


def facts_of(request: RequestSpec, identity: IdentitySpec) -> Facts:
    """The facts of the request as a gateway would see them; session and tenant are put into the headers of the rules,
    and the caller is verified.

    Raises: ValueError if `force` is not EXPERIMENT=ARM.
    """
    headers = {name.lower(): value for name, value in request.header.items()}
    if request.session is not None:
        headers[identity.session_header] = request.session
    if request.tenant is not None:
        headers[identity.tenant_header] = request.tenant
    return Facts(
        request.model,
        request.version,
        request.protocol,
        Operation(request.operation),
        headers,
        BodyFacts(dict(request.parameter), tuple(map(_input, request.input)), request.has_image),
        forced=_forced(request.force) if request.force is not None else None,
        principal=_principal(request),
    )


def _principal(request: RequestSpec) -> Principal | None:
    """The caller, where anything of it is given."""
    if request.tenant is None and request.key is None and not request.claim:
        return None
    return Principal(request.tenant or "", request.key or "", request.claim)


def _input(tensor: TensorSpec) -> InputFacts:
    size = data_bytes(tensor.datatype, tensor.shape) or 0 if tensor.bytes is None else tensor.bytes
    return InputFacts(tensor.name, tensor.datatype, tensor.shape, size)


def _forced(text: str) -> Forced:
    experiment, separator, arm = text.partition("=")
    if not separator:
        raise ValueError(f"{text!r} is not EXPERIMENT=ARM")
    return Forced(experiment, arm)


@dataclass(frozen=True, slots=True)
class RoutingOutcome:
    """The decision on a request. `by_chance`: equal facts may get another arm; `engines`: all possible engines, or all
    targets of a fleet operation (load, statistics)."""

    route: str | None  # None: it is refused
    engine: str | None = None
    model: str | None = None  # as sent to the engine
    experiment: str | None = None
    arm: str | None = None
    by_chance: bool = False
    engines: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()


NO_ROUTE = RoutingOutcome(None)


def outcome_of(table: Table, facts: Facts, throw: Callable[[], float] = lambda: 0.0) -> RoutingOutcome:
    """The table's decision on these facts, whose body is known or irrelevant. `throw` is called only for random
    assignment."""
    throws: list[float] = []

    def chance() -> float:
        throws.append(throw())
        return throws[-1]

    decision = table.decide(facts, chance)
    if decision is Undecided.NEEDS_BODY:
        raise ValueError("the body's facts are missing, and the rules ask for them")
    if not isinstance(decision, Decision):
        return NO_ROUTE
    target = decision.target
    may_be: tuple[Target, ...] = (target,)
    if facts.operation in FLEET_OPERATIONS:
        throws.clear()  # no arm is chosen
        may_be = table.targets_for(facts)
    elif throws:
        may_be = next(route.targets for route in table.routes if route.name == target.route)
    return RoutingOutcome(
        route=target.route,
        engine=target.engine,
        model=target.model or facts.model,
        experiment=target.experiment,
        arm=target.arm,
        by_chance=bool(throws),
        engines=frozenset(each.engine for each in may_be),
        models=frozenset(each.model or facts.model for each in may_be),
    )


NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


class RecordingError(Exception):
    """The recording cannot be started; the message says why."""


class NoRecordingError(Exception):
    """There is no such recording; the message lists the existing ones."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The state of a recording. `ended` is the reason why it has ended, empty while it runs."""

    name: str
    started: float  # seconds since 1970
    by: str
    share: float
    seconds: float
    max_facts: int
    rules: str  # digest of the rules at its start
    number: int
    headers: tuple[str, ...] = ()  # headers whose values are recorded
    facts: int = 0
    skipped: int = 0  # above the workers' maximum rate
    bytes: int = 0
    ended: str = ""


def read_recording(path: Path) -> Recording | None:
    """The first and last line of a file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.readline())
            size = file.seek(0, 2)
            file.seek(max(0, size - 4096))
            last = file.read().splitlines()[-1]
        data.pop("recording")
        recording = Recording(**{**data, "name": path.stem, "headers": tuple(data["headers"]), "bytes": size})
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return replace(recording, **_ending(last))


def _ending(last: bytes) -> dict[str, Any]:
    """The last line; missing if the gateway was killed."""
    try:
        data = json.loads(last)
        return {"ended": str(data["end"]), "facts": int(data["facts"]), "skipped": int(data["skipped"])}
    except (ValueError, KeyError, TypeError):
        return {"ended": "its gateway was killed"}
