"""Which endpoints operators have drained, at whatever replica, and what Redis is told of it.

Redis has one hash for all replicas: a field `["engine","url"]`, its value who drained it and when. What was decided
here while Redis was away counts here, and is written when it is back; all else is as Redis says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.events.event_types import EndpointDrained
from gateway.redis.script import Command

KEY = "pointsman:1:drained"

Key = tuple[str, str]  # engine name, endpoint url


@dataclass(frozen=True, slots=True)
class DrainedSince:
    """When an endpoint was drained, in seconds since 1970, and by whom."""

    since: float
    by: str


class Drains:
    """What is known of them by one replica."""

    def __init__(self) -> None:
        self._drained: dict[Key, DrainedSince] = {}
        self._unwritten: dict[Key, DrainedSince | None] = {}

    def __repr__(self) -> str:
        return f"<Drains: {len(self._drained)} endpoints, {len(self._unwritten)} changes to write>"

    @property
    def drained(self) -> Mapping[Key, DrainedSince]:
        return self._drained

    def decide(self, key: Key, drained: DrainedSince | None) -> None:
        """An operator says so, here."""
        self._set(key, drained)
        self._unwritten[key] = drained

    def hear(self, item: EndpointDrained) -> None:
        """An operator has said so, at another replica."""
        key = (item.engine, item.url)
        self._unwritten.pop(key, None)
        self._set(key, DrainedSince(item.since, item.by) if item.is_draining else None)

    def commands(self) -> list[Command]:
        """What is to be written, and, last, the question what there is."""
        writes: list[Command] = []
        for key, drained in self._unwritten.items():
            if drained is None:
                writes.append(("HDEL", KEY, json.dumps(key)))
            else:
                value = json.dumps({"since": drained.since, "by": drained.by})
                writes.append(("HSET", KEY, json.dumps(key), value))
        return [*writes, ("HGETALL", KEY)]

    def take(self, told: object, written: Mapping[Key, DrainedSince | None]) -> None:
        """Redis has answered: these changes are written, and this is what it has."""
        for key, drained in written.items():
            if key in self._unwritten and self._unwritten[key] == drained:
                del self._unwritten[key]
        if not isinstance(told, dict):  # a wrong type lies there: what is known here still counts
            return
        self._drained = _read(told)
        for key, drained in self._unwritten.items():
            self._set(key, drained)

    def unwritten(self) -> Mapping[Key, DrainedSince | None]:
        """What `commands` writes now."""
        return dict(self._unwritten)

    def _set(self, key: Key, drained: DrainedSince | None) -> None:
        if drained is None:
            self._drained.pop(key, None)
        else:
            self._drained[key] = drained


def _read(told: dict[Any, Any]) -> dict[Key, DrainedSince]:
    """The hash, without the fields that are none of ours."""
    found: dict[Key, DrainedSince] = {}
    for field, value in told.items():
        try:
            engine, url = json.loads(field)
            facts = json.loads(value)
            found[str(engine), str(url)] = DrainedSince(float(facts["since"]), str(facts["by"]))
        except (KeyError, TypeError, ValueError):
            continue
    return found
