"""The facts of a request that rules may use, and the decision that rules return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gateway.config.specs import HistorySpec, ReplaySpec
from gateway.protocol.body_facts import NO_BODY, BodyFacts, InputFacts, Scalar
from gateway.protocol.operations import Operation
from gateway.routing.assignment import Forced

__all__ = ["NO_BODY", "BodyFacts", "Facts", "InputFacts", "Scalar"]


@dataclass(slots=True)
class Facts:
    """A request as the rules see it. `body` is None until somebody reads it; header names are in lower case.

    `session` is the one that its head names, by a header or a cookie; with `session_is_told` False, each request with
    these facts may have its own, and its own header that an experiment assigns by.
    """

    model: str
    version: str | None = None
    protocol: str = "rest"
    operation: Operation = Operation.INFER
    headers: Mapping[str, str] = field(default_factory=dict)
    body: BodyFacts | None = None
    session: str | None = None
    session_is_told: bool = True
    forced: Forced | None = None  # somebody who may has chosen an arm


@dataclass(frozen=True, slots=True)
class Target:
    """A place a rule can send a request to: one object for each (route, arm) of a snapshot, so it can key a dict."""

    route: str
    engine: str
    model: str | None = None  # the model's name there; None keeps the requested one
    experiment: str | None = None
    arm: str | None = None  # None, with an experiment: the experiment has not got the unit; it is not measured
    is_forced: bool = False  # somebody chose the arm: nor is this
    resume: bool = False  # a generation that breaks off goes on elsewhere
    keeps_session: bool = False  # requests of a session go where the ones before went: to the same arm at least
    keeps_place: bool = False  # and to the endpoint of the one before, by hashing or by what is remembered
    sticks: bool = False  # a session keeps the arm that it had first
    history: HistorySpec | None = None  # a session's turns are kept
    replay: ReplaySpec | None = None  # a sequence's inputs are kept

    @property
    def is_measured(self) -> bool:
        """Whether an experiment counts what becomes of its requests."""
        return self.arm is not None and not self.is_forced

    @property
    def is_left_out(self) -> bool:
        """Whether it is of units that an experiment has not got."""
        return self.experiment is not None and self.arm is None

    @property
    def asks_session(self) -> bool:
        """Whether anybody wants to know of which session a request is."""
        return self.keeps_session or self.history is not None


@dataclass(frozen=True, slots=True)
class Decision:
    """A target, and what the balancer needs to know of the session; `unit` is what an experiment's arm was assigned by.

    `repeatable` says that the same head leads to the same decision in this snapshot: no field of the body and no chance
    was asked, so whoever remembers heads may remember the decision with them.
    """

    target: Target
    session: str | None = None
    repeatable: bool = True
    unit: str | None = None


class Undecided(Enum):
    """Why there is no decision."""

    NEEDS_BODY = "a rule that could still match asks for a field of the body"
    NO_ROUTE = "no route matches"
