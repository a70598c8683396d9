"""Explains a decision: evaluates all routes in order and reports every condition.

Tests hold `Table.decide` to the decisions made here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from gateway.protocol.operations import FLEET_OPERATIONS, INFERENCE_OPERATIONS
from gateway.routing.assignment import encoded
from gateway.routing.decision import NO_BODY, Decision, Facts, Target, Undecided
from gateway.routing.layout import UnitSpans
from gateway.routing.matchers import Condition, Subject
from gateway.routing.route import Route
from gateway.routing.table import Table


class RouteVerdict(Enum):
    """The result of a route."""

    MATCHED = "matched"
    FAILED = "failed"
    SKIPPED = "not asked"  # an earlier route had matched


@dataclass(frozen=True, slots=True)
class Check:
    """One condition and the request's value; `actual` is None if it has none."""

    key: str
    expected: str
    actual: str | None
    holds: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One route, with its conditions unless it was skipped."""

    route: str
    verdict: RouteVerdict
    checks: tuple[Check, ...] = ()

    @property
    def failed(self) -> tuple[Check, ...]:
        """The conditions that did not hold."""
        return tuple(check for check in self.checks if not check.holds)


@dataclass(frozen=True, slots=True)
class Assignment:
    """How an experiment chose the arm: by the position of the request's unit, or by chance if it has none.

    `parts`: the experiments that share the units (of a layer, or this one alone), if it does not have all of them.
    """

    experiment: str
    unit_kind: str  # session | request | header:NAME | parameter:NAME
    unit: str | None  # None: by chance, this request alone
    arm: str | None  # None: outside the experiment
    arm_spans: tuple[UnitSpans, ...]
    position: float | None = None  # in the experiment
    layer: str | None = None
    parts: tuple[UnitSpans, ...] = ()
    place: float | None = None  # in the layer, or in the share
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with its reasons: one step for each route, in order. A fleet operation (load, statistics, ...) goes to
    all `targets` instead, without an arm."""

    steps: tuple[Step, ...]
    decision: Decision | Undecided
    assignment: Assignment | None = None
    targets: tuple[Target, ...] = ()

    @property
    def has_target(self) -> bool:
        """Whether the request has a target."""
        return bool(self.targets) or isinstance(self.decision, Decision)


def explain(table: Table, facts: Facts, chance: Callable[[], float]) -> Explanation:
    """Decide as the table does, with reasons; an unread body counts as empty."""
    if facts.body is None:
        facts = replace(facts, body=NO_BODY)
    steps: list[Step] = []
    winner: Route | None = None
    in_head = True
    for route in table.routes:
        if winner is not None:
            steps.append(Step(route.name, RouteVerdict.SKIPPED))
            continue
        conditions = route.head if route.model is None else (route.model, *route.head)
        head, body = tuple(_check(condition, facts) for condition in conditions), _check_body(route, facts)
        if _all(head) and body and facts.operation in INFERENCE_OPERATIONS:
            in_head = False
        if _all(head) and _all(body):
            winner = route
        verdict = RouteVerdict.FAILED if winner is None else RouteVerdict.MATCHED
        steps.append(Step(route.name, verdict, head + body))
    targets = table.targets_for(facts) if facts.operation in FLEET_OPERATIONS else ()
    if winner is None:
        return Explanation(tuple(steps), Undecided.NO_ROUTE, targets=targets)
    as_read = table.facts_as_read(winner, facts, chance)
    if as_read is not None:
        return explain(table, as_read, chance)
    decision = winner.choose(facts, chance, in_head)
    if targets:
        return Explanation(tuple(steps), decision, targets=targets)
    return Explanation(tuple(steps), decision, _assignment(winner, facts, decision))


def _check_body(route: Route, facts: Facts) -> tuple[Check, ...]:
    """Only inferences have a body; other requests meet no body condition, not even a negative one."""
    if facts.operation not in INFERENCE_OPERATIONS:
        return tuple(Check(condition.key, condition.expected, None, False) for condition in route.body)
    return tuple(_check(condition, facts.body or NO_BODY) for condition in route.body)


def _check(condition: Condition[Subject], subject: Subject) -> Check:
    return Check(condition.key, condition.expected, condition.actual(subject), bool(condition.holds(subject)))


def _all(checks: tuple[Check, ...]) -> bool:
    return all(check.holds for check in checks)


def _assignment(route: Route, facts: Facts, decision: Decision | Undecided) -> Assignment | None:
    if route.split is None or isinstance(decision, Undecided):
        return None
    split, target = route.split, decision.target
    unit = route.unit_of(facts)
    member = split.membership
    return Assignment(
        experiment=split.spec.name,
        unit_kind=split.spec.unit,
        unit=unit,
        arm=target.arm,
        arm_spans=split.arm_spans(),
        position=split.position(unit) if unit is not None else None,
        layer=member.layer if member is not None else None,
        parts=member.parts() if member is not None else (),
        place=member.position(encoded(unit)) if member is not None and unit is not None else None,
        is_forced=target.is_forced,
    )
