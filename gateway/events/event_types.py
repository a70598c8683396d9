"""The kinds of news, and how they are written: JSON objects of a few fields.

Gateways of different versions read each other's news: a kind or a field that is not known here is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class RulesActivated:
    """A replica serves by other rules now: those that read the same files look at them now, not within a second, and
    those whose files are the same take over what an operator has put in force instead of them."""

    digest: str
    number: int  # the replica's own count
    by: str  # the replica
    base: str = ""  # digest of its rule files, which its rules may differ from


@dataclass(frozen=True, slots=True)
class EndpointDrained:
    """An endpoint gets no new work from now on, or gets it again. `since` is in seconds since 1970."""

    engine: str
    url: str
    is_draining: bool
    since: float
    by: str


@dataclass(frozen=True, slots=True)
class ConditionChanged:
    """A replica's probes say something else of an endpoint: others look for themselves at once."""

    engine: str
    url: str
    condition: str  # a Condition's value


@dataclass(frozen=True, slots=True)
class SessionMoved:
    """What workers remember of a session no longer holds: it is read anew at its next request."""

    name: str


@dataclass(frozen=True, slots=True)
class FeedbackGiven:
    """Feedback of a request that the worker which was told of it has not answered: whoever has, counts it, and says
    so."""

    token: str
    request_id: str
    name: str
    value: float | None = None
    label: str | None = None
    experiment: str | None = None


@dataclass(frozen=True, slots=True)
class FeedbackTaken:
    """It is counted."""

    token: str


@dataclass(frozen=True, slots=True)
class ExperimentChanged:
    """Its run has another state, which Redis has: shares may have changed."""

    name: str


Item = (
    RulesActivated
    | EndpointDrained
    | ConditionChanged
    | SessionMoved
    | FeedbackGiven
    | FeedbackTaken
    | ExperimentChanged
)

KINDS: Mapping[str, type[Item]] = {
    "rules": RulesActivated,
    "drain": EndpointDrained,
    "condition": ConditionChanged,
    "session": SessionMoved,
    "feedback": FeedbackGiven,
    "feedback_taken": FeedbackTaken,
    "experiment": ExperimentChanged,
}
_NAMES: Mapping[type, str] = {kind: name for name, kind in KINDS.items()}


def write_item(item: Item) -> tuple[str, str]:
    """Its kind's name and its JSON."""
    return _NAMES[type(item)], json.dumps(asdict(item), separators=(",", ":"))


def read_item(name: bytes, text: bytes) -> Item | None:
    """The item; None where this version does not know its kind, or cannot read it."""
    kind = KINDS.get(name.decode(errors="replace"))
    if kind is None:
        return None
    try:
        told: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(told, dict):
        return None
    known = {field.name: told[field.name] for field in fields(kind) if field.name in told}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    return kind(**known) if needed <= known.keys() else None
