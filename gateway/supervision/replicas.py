"""This gateway among its replicas: events to and from them, and the state that all share.

Every replica writes a heartbeat with its rules to one hash in Redis, whose stale fields any replica removes. Without
Redis, or while it is away, a gateway is alone and drains endpoints for itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any

from gateway.events.event_bus import EventBus
from gateway.events.event_types import ConditionChanged, EndpointDrained, ExperimentChanged, Item, RulesActivated
from gateway.protocol.engine_load import Readiness
from gateway.protocol.stored_json import count_of, read_json_object
from gateway.redis.address import RedisAddress
from gateway.redis.bounded_client import BoundedRedis, end
from gateway.redis.command import Script, StoreError
from gateway.supervision.drains import DrainedSince, Drains, Key

_log = logging.getLogger("pointsman")

KEY = "pointsman:1:replicas"

_BEAT_SECONDS = 4.0
# A replica without a heartbeat for this long is gone.
_STALE_SECONDS = 13
# No request waits for these calls.
_CALL_SECONDS = 1.0

# KEYS[1]; ARGV: this replica, its heartbeat, seconds after which one is stale. By Redis' own clock.
_BEAT = Script(
    """
    if redis.replicate_commands then redis.replicate_commands() end
    local now = tonumber(redis.call('TIME')[1])
    local found = redis.call('HGETALL', KEYS[1])
    for at = 1, #found, 2 do
        local seen = tonumber(string.match(found[at + 1], '^(%d+) '))
        if not seen or math.abs(now - seen) > tonumber(ARGV[3]) then redis.call('HDEL', KEYS[1], found[at]) end
    end
    redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', now) .. ' ' .. ARGV[2])
    redis.call('EXPIRE', KEYS[1], 60)
    return redis.call('HGETALL', KEYS[1])
    """
)


@dataclass(frozen=True, slots=True)
class Replica:
    """A gateway that shares its Redis with others: its name and the rules that it has in force."""

    name: str
    digest: str
    number: int
    base: str = ""  # digest of its rule files, which its rules may differ from


@dataclass(frozen=True, slots=True)
class ReplicaListeners:
    rules_changed: Callable[[], None]
    rules_shared: Callable[[], None]  # a replica with the same files may have other rules in force
    condition_changed: Callable[[Key], None]
    conditions_missed: Callable[[], None]  # changes may have been missed
    drained: Callable[[Collection[Key]], None]
    experiment_changed: Callable[[], None] = lambda: None


class Replicas:
    """One gateway's place among the others; `address` None: it is alone."""

    def __init__(self, address: RedisAddress | None, listeners: ReplicaListeners) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._address = address
        self._listeners = listeners
        self._drains = Drains()
        self._rules = ("", 0, "")
        self._conditions: dict[Key, Readiness] = {}
        self._others: tuple[Replica, ...] = ()
        self._store: BoundedRedis | None = None
        self._events: EventBus | None = None
        self._refused = ""  # why drained endpoints could not be written or read, last time
        self._heartbeats: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()

    # What is known

    @property
    def drained(self) -> Mapping[Key, DrainedSince]:
        return self._drains.drained

    @property
    def known(self) -> list[Replica]:
        """All replicas, this one first."""
        return [Replica(self.name, *self._rules), *self._others]

    # Beginning and ending

    async def start(self, digest: str, number: int, base: str) -> None:
        """Join the others, and read what they share, as far as Redis answers in time."""
        self._rules = (digest, number, base)
        if self._address is None:
            return
        self._store = BoundedRedis(self._address, deadline=_CALL_SECONDS)
        self._events = events = EventBus(self._store)
        events.subscribe(RulesActivated, self._rules_received)
        events.subscribe(ConditionChanged, lambda item: self._listeners.condition_changed((item.engine, item.url)))
        events.subscribe(EndpointDrained, self._drained_received)
        events.subscribe(ExperimentChanged, lambda item: self._listeners.experiment_changed())
        for call in (self._is_due.set, self._listeners.rules_shared):
            events.on_gap(call)
            self._store.on_return(call)
        events.on_gap(self._listeners.conditions_missed)
        if await self._store.open():
            await self._beat()
        events.start()
        self._heartbeats = asyncio.get_running_loop().create_task(self._keep_beating())

    async def close(self) -> None:
        """Leave the others."""
        if self._heartbeats is not None:
            await end(self._heartbeats)
        if self._events is not None:
            await self._events.close()
        if self._store is not None:
            self._store.enqueue(("HDEL", KEY, self.name))
            await self._store.close()

    # Events to the others

    def rules_activated(self, digest: str, number: int, base: str) -> None:
        self._rules = (digest, number, base)
        self._is_due.set()
        self._publish(RulesActivated(digest, number, self.name, base))

    def experiment_changed(self, name: str) -> None:
        """Publish that this replica has changed an experiment's run."""
        self._publish(ExperimentChanged(name))

    def conditions_changed(self, conditions: Mapping[Key, Readiness | None]) -> None:
        """Publish changes in the results of the probes, but for an endpoint's first."""
        for key, condition in conditions.items():
            before = self._conditions.pop(key, condition)
            if condition is not None:
                self._conditions[key] = condition
                if before is not condition:
                    self._publish(ConditionChanged(*key, condition.value))

    async def drain(self, key: Key, is_draining: bool, by: str) -> bool:
        """Drain an endpoint, or put it in use again; returns whether the other replicas will know."""
        drained = DrainedSince(time(), by) if is_draining else None
        _log.info("%s of engine '%s' is %s by %s", key[1], key[0], "drained" if is_draining else "in use again", by)
        self._drains.decide(key, drained)
        self._listeners.drained(self.drained)
        is_written = await self._beat()
        self._publish(EndpointDrained(*key, is_draining, time(), by))
        return is_written

    def _publish(self, item: Item) -> None:
        if self._events is not None:
            self._events.publish(item)

    # Events from the others

    def _rules_received(self, item: RulesActivated) -> None:
        digest, _, base = self._rules
        if item.digest != digest:
            self._listeners.rules_changed()
            if item.base == base:
                self._listeners.rules_shared()
        self._is_due.set()

    def _drained_received(self, item: EndpointDrained) -> None:
        self._drains.apply(item)
        self._listeners.drained(self.drained)
        self._is_due.set()  # a reply that is under way may be older

    # What all share

    async def _keep_beating(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), _BEAT_SECONDS)
            self._is_due.clear()
            await self._beat()

    async def _beat(self) -> bool:
        """Write a heartbeat and what was decided here, and read what all share; returns whether Redis took it."""
        if self._store is None:
            return False
        try:
            return await self._exchange(self._store)
        except Exception:  # a bug, or what others write to Redis, must not end the heartbeats
            _log.exception("cannot take what the other gateways share")
            return False

    async def _exchange(self, store: BoundedRedis) -> bool:
        digest, number, base = self._rules
        heartbeat = json.dumps({"digest": digest, "number": number, "base": base})
        unwritten = self._drains.unwritten()
        commands = [_BEAT.command([KEY], [self.name, heartbeat, _STALE_SECONDS]), *self._drains.commands()]
        try:
            answers = await store.call(commands)
        except StoreError:
            return False
        self._others = tuple(_read(answers[0], self.name))
        if any(other.base == base and other.digest != digest for other in self._others):
            self._listeners.rules_shared()
        refused = next((str(answer) for answer in answers[1:] if isinstance(answer, Exception)), "")
        if refused and refused != self._refused:
            _log.warning("Redis does not keep which endpoints are drained: %s", refused)
        self._refused = refused
        if refused:
            return False
        self._drains.take(answers[-1], unwritten)
        self._listeners.drained(self.drained)
        return True


def _read(reply: Any, own: str) -> list[Replica]:
    """The other replicas in the hash; invalid fields are skipped."""
    if isinstance(reply, list):  # a script's reply has no maps
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    if not isinstance(reply, dict):
        return []
    replicas = []
    for field, value in reply.items():
        try:
            facts = read_json_object(value.partition(b" ")[2])
            number = count_of(facts["number"])
            replica = Replica(field.decode(), str(facts["digest"]), number, str(facts.get("base", "")))
        except (KeyError, ValueError):
            continue
        if replica.name != own:
            replicas.append(replica)
    return sorted(replicas, key=lambda replica: replica.name)
