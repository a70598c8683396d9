"""One session, as a worker knows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.protocol.sequence import SEPARATOR, digest_of, is_sequence
from gateway.sessions.client_pin import Pinned

_ARM = b"arm:"
_AT = b"at:"
# Correlation ids are reused soon, possibly through another worker, so sequences are re-read after this time.
_SEQUENCE_SECONDS = 1.0
# A cached session is re-read after this time, in case an event was lost.
_SESSION_SECONDS = 60.0


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """A session or sequence as one worker caches it; times are seconds since the epoch."""

    name: str
    seen: float
    arms: dict[str, str] = field(default_factory=dict)  # by experiment: the arm first assigned
    routed: tuple[Any, Any] | None = None  # a value derived from `arms`, cached until they change, after its owner
    places: dict[str, str] = field(
        default_factory=dict
    )  # by engine: an endpoint's URL where it differs from the hashed one
    hashed_endpoints: dict[str, tuple[Any, Any]] = field(
        default_factory=dict
    )  # by engine: the one that hashing chooses, cached
    requests: int = 0  # since the last write
    written: float = 0.0
    is_new: bool = True  # neither Redis nor this worker has seen it before
    fresh_at: float = 0.0  # the last read from Redis, 0 for never
    is_dirty: bool = False
    is_read: bool = False  # what Redis has of it is known here, or there is no Redis
    guessed: set[str] | None = None  # the experiments whose arm was chosen while it was not
    pinned: dict[str, Pinned] | None = None  # by experiment: what its client has been told of its arm, or has shown
    # The experiment whose arm is no guess, and whose client need not be told it before this time
    settled_for: str = ""
    settled_until: float = 0.0
    is_sequence: bool = field(init=False)
    fresh_seconds: float = field(init=False)  # how long what was read stays valid

    def __post_init__(self) -> None:
        self.is_sequence = is_sequence(self.name)
        self.fresh_seconds = _SEQUENCE_SECONDS if self.is_sequence else _SESSION_SECONDS

    def __repr__(self) -> str:
        values = "".join(f" {name}={value}" for name, value in (*self.arms.items(), *self.places.items()))
        return f"<Session {self.name.rpartition(SEPARATOR)[2]}{values}>"

    def forget(self) -> None:
        """Drop everything but the request count; nothing of it is written."""
        self.arms.clear()
        self.routed = None
        self.places.clear()
        self.fresh_at = 0.0
        self.is_new = True
        self.is_dirty = False
        self.is_read = False
        self.guessed = None
        self.settled_until = 0.0

    def is_fresh(self, now: float) -> bool:
        return 0 <= now - self.fresh_at <= self.fresh_seconds

    def has_arm(self, experiment: str) -> bool:
        """Whether it has an arm that is no guess."""
        return experiment in self.arms and (self.guessed is None or experiment not in self.guessed)

    def inherit(self, before: Session) -> None:
        """Take the place of a cached session, with what is not written yet."""
        self.arms = before.arms
        self.routed = None
        self.hashed_endpoints = before.hashed_endpoints
        self.requests, before.requests = before.requests, 0
        self.written = before.written
        self.is_new = before.is_new
        self.guessed = before.guessed
        self.pinned = before.pinned

    def take(self, fields: Iterable[bytes]) -> dict[str, str]:
        """Apply the fields from Redis: names and values in turn. The first arm wins; of a place, the current one.

        Returns: the arms that Redis does not have.
        """
        parts = list(fields)
        self.routed = None
        self.is_read = True
        self.guessed = None
        missing = dict(self.arms)
        for name, value in zip(parts[::2], parts[1::2], strict=True):
            if name.startswith(_ARM):
                experiment = _text(name[len(_ARM) :])
                self.arms[experiment] = _text(value)
                missing.pop(experiment, None)
            elif name.startswith(_AT):
                self.places.setdefault(_text(name[len(_AT) :]), _text(value))
        if parts:
            self.is_new = False
        return missing


def arm_field(experiment: str) -> str:
    return f"arm:{experiment}"


def place_field(engine: str) -> str:
    return f"at:{engine}"


def flat(answer: object) -> list[bytes]:
    """The reply of HGETALL as names and values in turn, from a list or a mapping.

    Raises: TypeError if it is neither.
    """
    if isinstance(answer, Mapping):
        return [part for pair in answer.items() for part in pair]
    if isinstance(answer, list):
        return answer
    raise TypeError(f"HGETALL answered {type(answer).__name__}")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


PREFIX = "pointsman:1:"

# Ids that match stand in a key unchanged; all others are replaced by their digest, so that keys stay short and a
# caller's braces cannot direct them all to one cluster slot.
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/+=-]{1,96}\Z")


def session_key(name: str) -> str:
    """`pointsman:1:session:{name}`, or `pointsman:1:sequence:{model:id}`."""
    if is_sequence(name):
        return f"{PREFIX}sequence:{{{_sequence_id(name)}}}"
    return f"{PREFIX}session:{{{_readable(name)}}}"


def inputs_key(name: str) -> str:
    """`pointsman:1:inputs:{model:id}`: a sequence's inputs, in the sequence's cluster slot."""
    return f"{PREFIX}inputs:{{{_sequence_id(name)}}}"


def _sequence_id(name: str) -> str:
    """`model:id`; a model name that contains a colon would be ambiguous and is replaced by a digest."""
    model, _, id = name.partition(SEPARATOR)
    return digest_of(name) if ":" in model else _readable(f"{model}:{id}")


def _readable(text: str) -> str:
    return text if _PLAIN.match(text) else digest_of(text)
