"""One session, as a worker knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_ARM = b"arm:"
_AT = b"at:"


class Session:
    """A session or sequence as one worker caches it; times are seconds since the epoch.

    `arms`: the arm first assigned, by experiment. `places`: endpoint URLs, by engine, where they differ from the home:
    moved, pinned, or an active sequence. `requests`: requests since the last write. `fresh_at`: the time of the last
    read from Redis, 0 for never. `is_new`: neither Redis nor this worker has seen it before. `routed`: a value that its
    owner derived from `arms` and caches here until they change, with the owner.
    """

    __slots__ = (
        "arms",
        "fresh_at",
        "homes",
        "is_dirty",
        "is_new",
        "places",
        "requests",
        "routed",
        "seen",
        "session",
        "written",
    )

    def __init__(self, session: str, now: float) -> None:
        self.session = session
        self.arms: dict[str, str] = {}
        self.routed: tuple[Any, Any] | None = None
        self.places: dict[str, str] = {}
        self.homes: dict[str, tuple[Any, Any]] = {}  # by engine: its home, cached
        self.requests = 0
        self.seen = now
        self.written = 0.0  # when it was last written down
        self.is_new = True
        self.fresh_at = 0.0
        self.is_dirty = False

    def __repr__(self) -> str:
        values = "".join(f" {name}={value}" for name, value in (*self.arms.items(), *self.places.items()))
        return f"<Session {self.session}{values}>"

    def forget(self) -> None:
        """Drop everything but the request count; nothing of it is written."""
        self.arms.clear()
        self.routed = None
        self.places.clear()
        self.fresh_at = 0.0
        self.is_new = True
        self.is_dirty = False

    def inherit(self, before: Session) -> None:
        """Take the place of a cached session, with what is not written yet."""
        self.arms = before.arms
        self.routed = None
        self.homes = before.homes
        self.requests, before.requests = before.requests, 0
        self.written = before.written
        self.is_new = before.is_new

    def take(self, fields: Iterable[bytes]) -> dict[str, str]:
        """Apply the fields from Redis: names and values in turn. The first arm wins; of a place, the current one.

        Returns: the arms that Redis does not have.
        """
        parts = list(fields)
        self.routed = None
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
