"""The kinds of events, written as JSON objects.

Gateways of different versions read each other's events: unknown kinds and fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields

from gateway.protocol.stored_json import read_json_object


@dataclass(frozen=True, slots=True)
class RulesActivated:
    """A replica has other rules in force: replicas that read the same files read them at once, and replicas with equal
    files take over what an operator has put in force instead of them."""

    digest: str
    number: int  # the replica's own count
    by: str  # the replica
    base: str = ""  # digest of its rule files, which its rules may differ from


@dataclass(frozen=True, slots=True)
class EndpointDrained:
    """An endpoint is drained, or in use again. `since` is in seconds since 1970."""

    engine: str
    url: str
    is_draining: bool
    since: float
    by: str


@dataclass(frozen=True, slots=True)
class ConditionChanged:
    """A replica's probes found another condition of an endpoint: others probe it at once."""

    engine: str
    url: str
    condition: str  # a Condition's value


@dataclass(frozen=True, slots=True)
class SessionMoved:
    """What workers have cached of a session is outdated: its next request reads it again."""

    name: str


@dataclass(frozen=True, slots=True)
class FeedbackSubmitted:
    """Feedback on a request that the receiving worker did not answer: the worker that did counts it, and publishes
    `FeedbackAccepted`."""

    token: str
    request_id: str
    name: str
    value: float | None = None
    label: str | None = None
    experiment: str | None = None
    tenant: str | None = None  # the rater's, where the rules have `auth:`


@dataclass(frozen=True, slots=True)
class FeedbackAccepted:
    token: str


@dataclass(frozen=True, slots=True)
class ExperimentChanged:
    """The run has another state in Redis: shares may have changed."""

    name: str


Item = (
    RulesActivated
    | EndpointDrained
    | ConditionChanged
    | SessionMoved
    | FeedbackSubmitted
    | FeedbackAccepted
    | ExperimentChanged
)

KINDS: Mapping[str, type[Item]] = {
    "rules": RulesActivated,
    "drain": EndpointDrained,
    "condition": ConditionChanged,
    "session": SessionMoved,
    "feedback": FeedbackSubmitted,
    "feedback_taken": FeedbackAccepted,
    "experiment": ExperimentChanged,
}
_NAMES: Mapping[type, str] = {kind: name for name, kind in KINDS.items()}


def write_item(item: Item) -> tuple[str, str]:
    return _NAMES[type(item)], json.dumps(asdict(item), separators=(",", ":"))


def read_item(name: bytes, text: bytes) -> Item | None:
    """The event; None where its kind is unknown or its JSON invalid."""
    kind = KINDS.get(name.decode(errors="replace"))
    if kind is None:
        return None
    try:
        parsed = read_json_object(text)
    except ValueError:
        return None
    values = {field.name: parsed[field.name] for field in fields(kind) if field.name in parsed}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    return kind(**values) if needed <= values.keys() else None
