"""This gateway among its replicas: what it tells them, what it hears of them, and what all share.

With Redis every replica says now and then that it is there and which rules it has, in one hash whose stale fields any
of them removes. Without it, or while it is away, a gateway is alone, and drains endpoints for itself.
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
from gateway.events.event_types import ConditionChanged, EndpointDrained, ExperimentChanged, RulesActivated
from gateway.protocol.engine_load import Readiness
from gateway.redis.address import RedisAddress
from gateway.redis.asyncio_util import end
from gateway.redis.bounded_client import Store, StoreError
from gateway.redis.script import Script
from gateway.supervision.drains import DrainedSince, Drains, Key

_log = logging.getLogger("pointsman")

KEY = "pointsman:1:replicas"

_BEAT_SECONDS = 4.0
# One that was silent for so long is gone.
_STALE_SECONDS = 13
# Nobody's request waits for these calls.
_PATIENCE_SECONDS = 1.0

# KEYS[1]; ARGV: this replica, what it says, after how many seconds one is stale. Redis' own clock counts.
_BEAT = Script(
    """
    if redis.replicate_commands then redis.replicate_commands() end
    local now = tonumber(redis.call('TIME')[1])
    local found = redis.call('HGETALL', KEYS[1])
    for at = 1, #found, 2 do
        local seen = tonumber(string.match(found[at + 1], '^(%d+) '))
        if not seen or now - seen > tonumber(ARGV[3]) then redis.call('HDEL', KEYS[1], found[at]) end
    end
    redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', now) .. ' ' .. ARGV[2])
    redis.call('EXPIRE', KEYS[1], 60)
    return redis.call('HGETALL', KEYS[1])
    """
)


@dataclass(frozen=True, slots=True)
class Replica:
    """A gateway that serves by the same Redis: who it is, and which rules it has in force."""

    name: str
    digest: str
    number: int
    base: str = ""  # digest of its rule files, which its rules may differ from

    @property
    def follows_its_files(self) -> bool:
        return self.base in ("", self.digest)


@dataclass(frozen=True, slots=True)
class Ears:
    """What a replica does when it hears of something."""

    rules_changed: Callable[[], None]
    rules_shared: Callable[[], None]  # somebody with the same files may have other rules in force
    condition_changed: Callable[[Key], None]
    drained: Callable[[Collection[Key]], None]
    experiment_changed: Callable[[], None] = lambda: None


class Replicas:
    """One gateway's place among the others; `address` None: it is alone."""

    def __init__(self, address: RedisAddress | None, ears: Ears) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._address = address
        self._ears = ears
        self._drains = Drains()
        self._told_drained: frozenset[Key] = frozenset()
        self._rules = ("", 0, "")
        self._conditions: Mapping[Key, Readiness] = {}
        self._others: tuple[Replica, ...] = ()
        self._store: Store | None = None
        self._news: EventBus | None = None
        self._refused = ""  # why drained endpoints could not be written or read, last time
        self._beating: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Replicas: {self.name} and {len(self._others)} others, {self._drains!r}>"

    # What is known

    @property
    def drained(self) -> Mapping[Key, DrainedSince]:
        return self._drains.drained

    @property
    def known(self) -> list[Replica]:
        """All replicas, this one first; the others as Redis last told."""
        return [Replica(self.name, *self._rules), *self._others]

    # Beginning and ending

    async def start(self, digest: str, number: int, base: str) -> None:
        """Join the others, and learn what they share, as far as Redis answers within a moment."""
        self._rules = (digest, number, base)
        if self._address is None:
            return
        self._store = Store(self._address, deadline=_PATIENCE_SECONDS)
        self._news = news = EventBus(self._store)
        news.listen(RulesActivated, self._hear_rules)
        news.listen(ConditionChanged, lambda item: self._ears.condition_changed((item.engine, item.url)))
        news.listen(EndpointDrained, self._hear_drained)
        news.listen(ExperimentChanged, lambda item: self._ears.experiment_changed())
        for call in (self._is_due.set, self._ears.rules_shared):
            news.on_missed(call)
            self._store.on_return(call)
        if await self._store.open():
            await self._beat()
        news.start()
        self._beating = asyncio.get_running_loop().create_task(self._keep_beating())

    async def close(self) -> None:
        """Leave the others."""
        if self._beating is not None:
            await end(self._beating)
        if self._news is not None:
            await self._news.close()
        if self._store is not None:
            self._store.tell(("HDEL", KEY, self.name))
            await self._store.close()

    # Telling

    def rules_activated(self, digest: str, number: int, base: str) -> None:
        """This one serves by other rules now."""
        self._rules = (digest, number, base)
        self._is_due.set()
        if self._news is not None:
            self._news.tell(RulesActivated(digest, number, self.name, base))

    def experiment_changed(self, name: str) -> None:
        """Its run has another state, by a decision of this one."""
        if self._news is not None:
            self._news.tell(ExperimentChanged(name))

    def conditions_found(self, conditions: Mapping[Key, Readiness]) -> None:
        """What the probes say now; what has changed is news."""
        before, self._conditions = self._conditions, dict(conditions)
        if self._news is None:
            return
        for key, condition in conditions.items():
            if before.get(key, condition) is not condition:
                self._news.tell(ConditionChanged(*key, condition.value))

    async def drain(self, key: Key, is_draining: bool, by: str) -> bool:
        """Have an endpoint get no new work, or get it again; tells whether the other replicas will know."""
        drained = DrainedSince(time(), by) if is_draining else None
        _log.info("%s of engine '%s' is %s by %s", key[1], key[0], "drained" if is_draining else "in use again", by)
        self._drains.decide(key, drained)
        self._tell_drained()
        is_written = await self._beat()
        if self._news is not None:
            self._news.tell(EndpointDrained(*key, is_draining, time(), by))
        return is_written

    # Hearing

    def _hear_rules(self, item: RulesActivated) -> None:
        digest, _, base = self._rules
        if item.digest != digest:
            self._ears.rules_changed()
            if item.base == base:
                self._ears.rules_shared()
        self._is_due.set()

    def _hear_drained(self, item: EndpointDrained) -> None:
        self._drains.hear(item)
        self._tell_drained()
        self._is_due.set()  # an answer that is under way may be older than this

    def _tell_drained(self) -> None:
        drained = frozenset(self._drains.drained)
        if drained != self._told_drained:
            self._told_drained = drained
            self._ears.drained(drained)

    # What all share

    async def _keep_beating(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), _BEAT_SECONDS)
            self._is_due.clear()
            await self._beat()

    async def _beat(self) -> bool:
        """Say that this one is there, write what was decided here, and read what all share; tells whether that was
        possible."""
        if self._store is None:
            return False
        digest, number, base = self._rules
        said = json.dumps({"digest": digest, "number": number, "base": base})
        unwritten = self._drains.unwritten()
        commands = [_BEAT.command([KEY], [self.name, said, _STALE_SECONDS]), *self._drains.commands()]
        try:
            answers = await self._store.ask(commands)
        except StoreError:
            return False
        self._others = tuple(_read(answers[0], self.name))
        if any(other.base == base and other.digest != digest for other in self._others):
            self._ears.rules_shared()
        refused = next((str(answer) for answer in answers[1:] if isinstance(answer, Exception)), "")
        if refused and refused != self._refused:
            _log.warning("Redis does not keep which endpoints are drained: %s", refused)
        self._refused = refused
        if refused:
            return False
        self._drains.take(answers[-1], unwritten)
        self._tell_drained()
        return True


def _read(told: Any, own: str) -> list[Replica]:
    """The replicas in the hash but this one; what cannot be read is passed over."""
    if isinstance(told, list):  # a script's answer has no maps
        told = dict(zip(told[::2], told[1::2], strict=True))
    if not isinstance(told, dict):
        return []
    found = []
    for field, value in told.items():
        try:
            facts = json.loads(value.partition(b" ")[2])
            replica = Replica(field.decode(), str(facts["digest"]), int(facts["number"]), str(facts.get("base", "")))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        if replica.name != own:
            found.append(replica)
    return sorted(found, key=lambda replica: replica.name)
