"""Where a request goes, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.config.specs import HistorySpec, ReplaySpec


@dataclass(frozen=True, slots=True)
class Target:
    """A place a rule can send a request to: one object for each (route, arm) of a snapshot, so it can key a dict."""

    route: str
    engine: str
    model: str | None = None  # the model's name there; None keeps the requested one
    experiment: str | None = None
    arm: str | None = None
    resume: bool = False  # a generation that breaks off goes on elsewhere
    keeps_session: bool = False  # requests of a session go where the ones before went
    sticks: bool = False  # a session keeps the arm that it had first
    history: HistorySpec | None = None  # a session's turns are kept
    replay: ReplaySpec | None = None  # a sequence's inputs are kept

    @property
    def asks_session(self) -> bool:
        """Whether anybody wants to know of which session a request is."""
        return self.keeps_session or self.history is not None


@dataclass(frozen=True, slots=True)
class Decision:
    """A target, and what the balancer needs to know of the unit.

    `repeatable` says that the same head leads to the same decision in this snapshot: no field of the body and no chance
    was asked, so whoever remembers heads may remember the decision with them.
    """

    target: Target
    session: str | None = None
    repeatable: bool = True


class Undecided(Enum):
    """Why there is no decision."""

    NEEDS_BODY = "a rule that could still match asks for a field of the body"
    NO_ROUTE = "no route matches"
