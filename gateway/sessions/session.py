"""One session, as a worker knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_ARM = b"arm:"
_AT = b"at:"


class Session:
    """What one worker knows of a session or sequence; times are seconds since the epoch.

    `arms` are those first seen, by experiment. `places` are the endpoints' URLs, by engine, where it is not at home:
    moved, pinned, or a sequence under way. `requests` counts those since it was last written down. `fresh_at` is when
    it was last read from Redis, 0 for never; `is_new` says that neither Redis nor this worker had seen it before.
    `led` is what somebody has concluded from its arms, and keeps here as long as these are the same: by whom, and what.
    """

    __slots__ = (
        "arms",
        "fresh_at",
        "homes",
        "is_dirty",
        "is_new",
        "led",
        "places",
        "requests",
        "seen",
        "session",
        "written",
    )

    def __init__(self, session: str, now: float) -> None:
        self.session = session
        self.arms: dict[str, str] = {}
        self.led: tuple[Any, Any] | None = None
        self.places: dict[str, str] = {}
        self.homes: dict[str, tuple[Any, Any]] = {}  # by engine: its home, kept by whoever finds it
        self.requests = 0
        self.seen = now
        self.written = 0.0  # when it was last written down
        self.is_new = True
        self.fresh_at = 0.0
        self.is_dirty = False

    def __repr__(self) -> str:
        told = "".join(f" {name}={value}" for name, value in (*self.arms.items(), *self.places.items()))
        return f"<Session {self.session}{told}>"

    def forget(self) -> None:
        """What is known of it does not count any more, but for its requests; nor is any of it written down."""
        self.arms.clear()
        self.led = None
        self.places.clear()
        self.fresh_at = 0.0
        self.is_new = True
        self.is_dirty = False

    def inherit(self, before: Session) -> None:
        """It takes the place of what was known until now, and with it what is not written down yet."""
        self.arms = before.arms
        self.led = None
        self.homes = before.homes
        self.requests, before.requests = before.requests, 0
        self.written = before.written
        self.is_new = before.is_new

    def take(self, fields: Iterable[bytes]) -> dict[str, str]:
        """Take over what Redis has: names and values in turn. What was seen first stays; where it is now, counts.
        Returns the arms that Redis does not have."""
        parts = list(fields)
        self.led = None
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
    """HGETALL's answer as names and values in turn, whichever form a client gives it.

    Raises: TypeError where it is neither.
    """
    if isinstance(answer, Mapping):
        return [part for pair in answer.items() for part in pair]
    if isinstance(answer, list):
        return answer
    raise TypeError(f"HGETALL answered {type(answer).__name__}")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
