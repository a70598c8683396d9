"""What is told of a recording of traffic, and how its file tells it.

A recording is a file of JSON lines: what it is, then a decision a line, then how it ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.config.rule_test_specs import RequestSpec, TensorSpec
from gateway.config.specs import IdentitySpec
from gateway.protocol.datatypes import data_bytes
from gateway.protocol.operations import FLEET_OPERATIONS, Operation
from gateway.routing.assignment import Forced
from gateway.routing.decision import BodyFacts, Decision, Facts, InputFacts, Target, Undecided
from gateway.routing.table import Table


def facts_of(request: RequestSpec, identity: IdentitySpec) -> Facts:
    """What a gateway would know of it; its session and its tenant stand in the headers that rules have for them.

    Raises: ValueError where `force` is not EXPERIMENT=ARM.
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
    )


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
    """Where a request goes. `by_chance` says that another one of the same facts may get another arm; `engines` are all
    to which it may go then, or does where it concerns all (load, stats)."""

    route: str | None  # None: it is refused
    engine: str | None = None
    model: str | None = None  # as the engine is asked for it
    experiment: str | None = None
    arm: str | None = None
    by_chance: bool = False
    engines: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()


NO_ROUTE = RoutingOutcome(None)


def outcome_of(table: Table, facts: Facts, throw: Callable[[], float] = lambda: 0.0) -> RoutingOutcome:
    """What a table says of these facts; its body is known, or has nothing to say. `throw` is asked where only chance
    decides."""
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
        target.route,
        target.engine,
        target.model or facts.model,
        target.experiment,
        target.arm,
        bool(throws),
        frozenset(each.engine for each in may_be),
        frozenset(each.model or facts.model for each in may_be),
    )


NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


class RecordingError(Exception):
    """There can be no such recording; the message says why."""


class NoRecordingError(Exception):
    """There is no such recording; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What is told of one. `ended` is why it takes no more, empty while it does."""

    name: str
    started: float  # seconds since 1970
    by: str
    share: float
    seconds: float
    max_facts: int
    rules: str  # digest of those in force when it began
    number: int
    headers: tuple[str, ...] = ()  # those of whose values anything is recorded
    facts: int = 0
    skipped: int = 0  # over the rate at which workers tell
    bytes: int = 0
    ended: str = ""


def read_recording(path: Path) -> Recording | None:
    """What a file's first and last line tell; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            told = json.loads(file.readline())
            size = file.seek(0, 2)
            file.seek(max(0, size - 4096))
            last = file.read().splitlines()[-1]
        told.pop("recording")
        made = Recording(**{**told, "name": path.stem, "headers": tuple(told["headers"]), "bytes": size})
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return replace(made, **_ending(last))


def _ending(last: bytes) -> dict[str, Any]:
    """What the last line tells; a recording whose gateway was killed has none."""
    try:
        told = json.loads(last)
        return {"ended": str(told["end"]), "facts": int(told["facts"]), "skipped": int(told["skipped"])}
    except (ValueError, KeyError, TypeError):
        return {"ended": "its gateway was killed"}
