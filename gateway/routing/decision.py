"""The facts of a request that rules may use, and the decision that rules return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gateway.config.fallback_specs import FallbackSpec
from gateway.config.specs import HistorySpec, ReplaySpec
from gateway.protocol.fallback_reasons import FallbackReason
from gateway.protocol.hedge_outcome import HedgeOutcome
from gateway.protocol.operations import Operation
from gateway.protocol.principal import Principal
from gateway.protocol.sequence import AnySession
from gateway.protocol.v2_facts import NO_BODY, BodyFacts, InputFacts, Scalar
from gateway.routing.assignment import Forced

__all__ = ["NO_BODY", "BodyFacts", "Facts", "InputFacts", "Scalar"]


@dataclass(slots=True)
class Facts:
    """A request as the rules see it. `body` is None until it is read; header names are in lower case.

    `session` is named by a header or cookie. With `has_session` False the facts stand for several requests, each with
    its own session and its own unit header.
    """

    model: str
    version: str | None = None
    protocol: str = "rest"
    operation: Operation = Operation.INFER
    headers: Mapping[str, str] = field(default_factory=dict)
    body: BodyFacts | None = None
    session: str | None = None
    has_session: bool = True
    forced: Forced | None = None  # an arm chosen by the request, with a valid key
    principal: Principal | None = None  # the verified caller


@dataclass(frozen=True, slots=True)
class Target:
    """A target of a route: one object for each (route, arm) of a snapshot, so it can be a dict key."""

    route: str
    engine: str
    model: str | None = None  # the model's name there; None keeps the requested one
    experiment: str | None = None
    arm: str | None = None  # None, with an experiment: for units outside the experiment; not measured
    is_forced: bool = False  # the request chose the arm; not measured
    resume: bool = False  # a generation that breaks off continues elsewhere
    is_sticky: bool = False  # sticky sessions: at least the arm
    sticky_endpoint: bool = False  # sticky sessions: the endpoint too
    sticky_arm: bool = False  # a session keeps its first arm
    history: HistorySpec | None = None  # conversations are stored
    replay: ReplaySpec | None = None  # the inputs of sequences are stored
    max_body_bytes: int | None = None  # of a request; None: the gateway's own bound
    fallbacks: tuple[FallbackSpec, ...] = ()  # engines that answer where this one cannot, in order
    stands_in_for: FallbackReason | None = None  # why another engine's requests come here; None: by the rules alone
    hedge: HedgeOutcome | None = None  # of requests with a second attempt, what became of that

    @property
    def destinations(self) -> list[tuple[str, str | None]]:
        """Its engine and those of its fallbacks, each with the model's name there."""
        return [(self.engine, self.model), *((each.engine, each.model or self.model) for each in self.fallbacks)]

    @property
    def is_measured(self) -> bool:
        """Whether an experiment counts its requests."""
        return self.arm is not None and not self.is_forced

    @property
    def is_outside(self) -> bool:
        """Whether it is the target for units outside an experiment."""
        return self.experiment is not None and self.arm is None

    @property
    def needs_session(self) -> bool:
        """Whether it needs the session of a request."""
        return self.is_sticky or self.history is not None


@dataclass(frozen=True, slots=True)
class Decision:
    """A target with the session, for the balancer, and the unit of the experiment.

    `repeatable`: in this snapshot the same head always leads to this decision, without the body or chance, so it may be
    cached with the head.
    """

    target: Target
    session: AnySession | None = None
    repeatable: bool = True
    unit: str | None = None


class Undecided(Enum):
    """The reason why there is no decision."""

    NEEDS_BODY = "a rule that could still match asks for a field of the body"
    NO_ROUTE = "no route matches"
    FORBIDDEN = "the caller may not use the route that matches"
