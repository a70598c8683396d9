"""Endpoints that operators have drained at any replica.

Redis has one hash for all replicas, with a field `["engine","url"]` for each drained endpoint. What was decided here
while Redis was away applies here, and is written when it is back; all else follows Redis.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.events.event_types import EndpointDrained
from gateway.protocol.stored_json import read_json_object, read_json_texts, time_of
from gateway.redis.command import Command

KEY = "pointsman:1:drained"

Key = tuple[str, str]  # engine name, endpoint url


@dataclass(frozen=True, slots=True)
class DrainedSince:
    """When an endpoint was drained, in seconds since 1970, and by whom."""

    since: float
    by: str


class Drains:
    """The drained endpoints, as one replica knows them."""

    def __init__(self) -> None:
        self.drained: dict[Key, DrainedSince] = {}
        self._unwritten: dict[Key, DrainedSince | None] = {}

    def decide(self, key: Key, drained: DrainedSince | None) -> None:
        """A decision of an operator at this replica."""
        self._set(key, drained)
        self._unwritten[key] = drained

    def apply(self, item: EndpointDrained) -> None:
        """A decision of an operator at another replica."""
        key = (item.engine, item.url)
        self._unwritten.pop(key, None)
        self._set(key, DrainedSince(item.since, item.by) if item.is_draining else None)

    def commands(self) -> list[Command]:
        """The pending writes, then the read of the whole hash."""
        writes: list[Command] = []
        for key, drained in self._unwritten.items():
            if drained is None:
                writes.append(("HDEL", KEY, json.dumps(key)))
            else:
                value = json.dumps({"since": drained.since, "by": drained.by})
                writes.append(("HSET", KEY, json.dumps(key), value))
        return [*writes, ("HGETALL", KEY)]

    def take(self, reply: object, written: Mapping[Key, DrainedSince | None]) -> None:
        """Redis has replied: these changes are written, and this is its hash."""
        for key, drained in written.items():
            if key in self._unwritten and self._unwritten[key] == drained:
                del self._unwritten[key]
        if not isinstance(reply, dict):  # a wrong type in Redis: keep what is known
            return
        self.drained = _read(reply)
        for key, drained in self._unwritten.items():
            self._set(key, drained)

    def unwritten(self) -> Mapping[Key, DrainedSince | None]:
        """The changes that `commands` writes."""
        return dict(self._unwritten)

    def _set(self, key: Key, drained: DrainedSince | None) -> None:
        if drained is None:
            self.drained.pop(key, None)
        else:
            self.drained[key] = drained


def _read(reply: dict[Any, Any]) -> dict[Key, DrainedSince]:
    """The hash without invalid fields."""
    drained: dict[Key, DrainedSince] = {}
    for field, value in reply.items():
        try:
            engine, url = read_json_texts(field)
            facts = read_json_object(value)
            drained[engine, url] = DrainedSince(time_of(facts["since"]), str(facts["by"]))
        except (KeyError, ValueError):
            continue
    return drained
