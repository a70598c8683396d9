"""One worker's cache of sessions, read from Redis and written behind.

The first request of a session reads it from Redis, in one pipeline with all others of this turn of the event loop, and
waits at most for the client's deadline. After that nothing is read; changes are written behind. Without Redis, or with
a late one, consistent hashing places the session, and it is read later.

A session whose arm an experiment asks for waits longer, over connections of its own (`wait_for_arms`): a wrong arm
costs more than milliseconds, a wrong endpoint does not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING

from gateway.redis.address import RedisTopology
from gateway.redis.command import Command, Script, StoreError
from gateway.sessions.session import Session, arm_field, flat, place_field, session_key

if TYPE_CHECKING:  # a worker without Redis need not load its client
    from gateway.redis.bounded_client import BoundedRedis


class LruSessions:
    """At most `most` sessions, by name, in two generations: a used session moves to the young one; when that is full,
    the old one is dropped."""

    __slots__ = ("_generation", "_old", "_young")

    def __init__(self, most: int) -> None:
        self._generation = max(1, most // 2)
        self._young: dict[str, Session] = {}
        self._old: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[Session]:
        yield from self._young.values()
        yield from self._old.values()

    def use(self, name: str) -> Session | None:
        """The session of this name, moved to the young generation."""
        found = self._young.get(name)
        if found is None:
            found = self._old.pop(name, None)
            if found is not None:
                self.add(name, found)
        return found

    def look(self, name: str) -> Session | None:
        """The session of this name; its generation does not change."""
        return self._young.get(name) or self._old.get(name)

    def add(self, name: str, session: Session) -> Session:
        """Add or replace a session."""
        if len(self._young) >= self._generation:
            self._old, self._young = self._young, {}
        self._old.pop(name, None)
        self._young[name] = session
        return session

    def pop(self, name: str) -> Session | None:
        """Remove a session."""
        return self._young.pop(name, None) or self._old.pop(name, None)


@dataclass(slots=True)
class SessionCounts:
    """Totals of this worker since the start."""

    read: int = 0  # from Redis
    unread: int = 0  # served without a read, because Redis was late or unavailable
    created: int = 0
    shed: int = 0  # new ones, moved from an overloaded endpoint
    # By engine, the endpoint that a session left, and the reason: drained, unavailable, or removed from the rules
    moved: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    # By engine and last endpoint
    sequences_lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    # By engine, the endpoint that a sequence left, and the reason: lost or drained; its inputs were replayed elsewhere
    sequences_moved: Counter[tuple[str, str, str]] = field(default_factory=Counter)


# An active session is written at this interval (its request count and last use), and often enough that it does not
# expire.
_TOUCH_SECONDS = 30.0
_TOUCHES_A_LIFE = 3
# Counts requests; the first `created` wins. KEYS; ARGV: now (ms), time to live (s), and the requests of each key.
_TOUCH = Script(
    """
    for at, key in ipairs(KEYS) do
        redis.call('HSETNX', key, 'created', ARGV[1])
        redis.call('HSET', key, 'seen', ARGV[1])
        redis.call('HINCRBY', key, 'requests', ARGV[at + 2])
        redis.call('EXPIRE', key, ARGV[2])
    end
    """
)
# Sessions written by one call, which makes each ten times cheaper. In a cluster each key is written alone.
_TOUCHED_AT_ONCE = 64

# Longest time that an application waits for Redis to have what it is told: it asks once, and what it shows stays.
_RESERVE_SECONDS = 0.25

# The pause before a session is read again after a late reply.
_READ_AGAIN_SECONDS = 1.0

Callback = Callable[[Session], None]
Batch = dict[str, tuple[Session, list[Callback]]]  # by name: what waits for the session


class SessionCache:
    """Caches at most `max_sessions` sessions; Redis keeps an unused one for `ttl` seconds."""

    def __init__(
        self,
        store: BoundedRedis | None,
        loop: asyncio.AbstractEventLoop,
        *,
        ttl: float = 3600.0,
        max_sessions: int = 50_000,
        announce: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`announce` is called with the name of a session that has moved, so that other workers drop it."""
        self._store = store
        self._loop = loop
        self.remember_for(ttl)
        self._announce = announce
        self._sessions = LruSessions(max_sessions)
        # To be read in this turn, and being read, by how long their requests wait; 0: for the client's deadline
        self._to_read: dict[float, Batch] = {}
        self._reading: dict[float, Batch] = {}
        self._patient: BoundedRedis | None = None  # the same Redis, for arms
        self._outdated: set[str] = set()  # being read, but changed since: the reply is stale
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: list[Session] = []
        self.counts = SessionCounts()
        if store is not None:
            store.on_return(self.forget_all)

    @property
    def num_sessions(self) -> int:
        """The number of cached sessions."""
        return len(self._sessions)

    def remember_for(self, ttl: float) -> None:
        """Set the time in seconds that Redis keeps an unused session."""
        self.ttl_seconds = max(1, int(ttl))
        self._touch_seconds = min(_TOUCH_SECONDS, ttl / _TOUCHES_A_LIFE)

    def wait_for_arms(self, store: BoundedRedis | None) -> None:
        """Read and write sessions' arms by this store, whose deadline is longer; None: by the usual one."""
        self._patient = store

    # Looking up

    def get(self, name: str, now: float, experiment: str | None = None) -> Session | None:
        """The cached session; None if it must be read from Redis first (`find`). `now` is of `time.time`; `experiment`
        needs its arm."""
        found = self._sessions.use(name)
        if found is None:
            if self._can_read or (experiment is not None and self._can_wait):
                return None
            self.counts.unread += self._store is not None
            return self._sessions.add(name, self._new(name, now))
        if not 0 <= now - found.fresh_at <= found.fresh_seconds:  # clocks may be set back
            if self._can_read or (experiment is not None and self._can_wait and not found.has_arm(experiment)):
                return None
            found.is_read = self._store is None
        elif experiment is not None and not found.is_read and experiment not in found.arms and self._can_wait:
            return None  # read too late for another rule, which needs its place alone
        found.seen = now
        return found

    def peek(self, name: str, now: float) -> Session:
        """The cached session, however old; a new one if there is none."""
        return self._sessions.use(name) or self._sessions.add(name, self._new(name, now))

    def _new(self, name: str, now: float) -> Session:
        return Session(name, now, is_read=self._store is None)

    def look(self, name: str) -> Session | None:
        """The cached session, however old; None if there is none."""
        return self._sessions.look(name)

    def find(self, name: str, found: Callback, experiment: str | None = None, wait: float = 0.0) -> None:
        """Read a session and call `found` with it in a later turn, within the client's deadline; within `wait` seconds
        where `experiment` does not know its arm yet."""
        if wait:
            cached = self._sessions.look(name)
            has_arm = cached is not None and experiment is not None and cached.has_arm(experiment)
            if has_arm or not self._can_wait:
                wait = 0.0
        for batches in (self._to_read, self._reading):
            pending = batches[wait].get(name) if wait in batches else None
            if pending is not None:
                pending[1].append(found)
                return
        if wait not in self._to_read:
            self._to_read[wait] = {}
            self._loop.call_soon(self._read_batch, wait)
        self._to_read[wait][name] = Session(name, time()), [found]

    async def load(self, name: str, experiment: str | None = None, wait: float = 0.0) -> Session:
        """The cached session, or the one that Redis has; as `get` and `find`."""
        known = self.get(name, time(), experiment)
        if known is not None:
            return known
        found: asyncio.Future[Session] = self._loop.create_future()
        self.find(name, lambda known: None if found.done() else found.set_result(known), experiment, wait)
        return await found

    def take(self, name: str, answer: object) -> None:
        """Apply a reply that another caller has read from Redis."""
        self._answer(name, Session(name, time()), answer, is_behind=False)

    def forget(self, name: str) -> None:
        """Another process has changed it: drop it."""
        session = self._sessions.look(name)
        if session is not None:
            session.forget()
        if any(name in batch for batch in self._reading.values()):
            self._outdated.add(name)

    def forget_all(self) -> None:
        """Redis was unavailable, or events were lost: re-read everything on next use."""
        for session in self._sessions:
            session.fresh_at = 0.0
            session.is_read = self._store is None
        self._outdated.update(*self._reading.values())

    def forget_hashed_endpoints(self) -> None:
        """The rules have changed: drop the cached hashed endpoints."""
        for session in self._sessions:
            session.hashed_endpoints.clear()
            session.routed = None

    # Changing

    def count(self, session: Session, now: float) -> None:
        """Count one more request."""
        session.requests += 1
        if session.is_new:
            session.is_new = False
            self.counts.created += 1
        if session.is_sequence:
            session.fresh_at = now  # the worker that serves a sequence has its current state
        if not 0 <= now - session.written <= self._touch_seconds:
            self._mark_dirty(session, now)

    def keep_arm(
        self,
        session: Session,
        experiment: str,
        arm: str,
        now: float,
        *,
        replaces: bool = False,
        is_guess: bool = False,
    ) -> None:
        """Assign an arm, unless Redis already has one; `replaces`: in place of that one. `is_guess`: what Redis has was
        not known, and it may have replaced that one itself."""
        session.arms[experiment] = arm
        session.routed = None
        session.settled_until = 0.0
        if is_guess:
            session.guessed = {*(session.guessed or ()), experiment}
        elif session.guessed is not None:
            session.guessed.discard(experiment)
        self._mark_dirty(session, now)
        if replaces and is_guess:
            return
        self._write_arm(session, experiment, arm, "HSET" if replaces else "HSETNX")
        if replaces:
            self._announce(session.name)

    def settle_arm(self, session: Session, experiment: str, arm: str, now: float) -> None:
        """The session has sent its first request to the arm that it was assigned by `reserve_arm`."""
        session.arms[experiment] = arm
        session.routed = None
        session.settled_until = 0.0
        self._write_arm(session, experiment, arm, "HSET")
        self._mark_dirty(session, now)

    async def reserve_arm(
        self, session: Session, experiment: str, arm: str, now: float, *, replaces: bool = False, settles: bool = False
    ) -> str:
        """Assign an arm before a request needs it, unless Redis already has one; `replaces`: in place of that one. The
        other workers know when this returns. `settles`: the arm is one that the session keeps from now on.

        Returns: what Redis has.
        """
        session.arms[experiment] = arm
        session.routed = None
        session.settled_until = 0.0
        self._mark_dirty(session, now)
        store, key, write = self._patient or self._store, session_key(session.name), "HSET" if replaces else "HSETNX"
        if store is not None:
            field = arm_field(experiment)
            try:
                commands = [(write, key, field, arm), ("HGET", key, field), ("EXPIRE", key, self.ttl_seconds)]
                _, found, _ = await store.call(commands, max(store.deadline, _RESERVE_SECONDS))
            except StoreError:
                self.keep_arm(session, experiment, arm, now, replaces=replaces, is_guess=not session.is_read)
            else:
                if session.guessed is not None:
                    session.guessed.discard(experiment)
                if isinstance(found, bytes):
                    session.arms[experiment] = arm = found.decode("utf-8", "replace")
            if replaces or not session.is_new:  # others may have cached it without this arm
                self._announce(session.name)
            if not settles:  # its first request may come to another worker, which then settles the arm
                session.fresh_at = 0.0
        return arm

    def place(self, session: Session, engine: str, url: str | None) -> None:
        """Record an endpoint other than the hashed one; None: it is there again."""
        if url is None:
            session.places.pop(engine, None)
            self._write(("HDEL", session_key(session.name), place_field(engine)))
        else:
            session.places[engine] = url
            key = session_key(session.name)
            self._write(("HSET", key, place_field(engine), url), ("EXPIRE", key, self.ttl_seconds))
        if not session.is_sequence:
            self._announce(session.name)

    def end(self, name: str) -> None:
        """A sequence has ended: its id may be reused."""
        cached = self._sessions.pop(name)
        if cached is not None:
            cached.is_dirty = False
        self._write(("DEL", session_key(name)))

    def flush(self) -> None:
        """Write what has changed; called about once a second, and at the end."""
        dirty = [session for session in self._dirty if session.is_dirty]
        self._dirty.clear()
        if self._store is None or not dirty:
            return
        now = int(time() * 1000)
        size = 1 if self._store.address.layout is RedisTopology.CLUSTER else _TOUCHED_AT_ONCE
        for at in range(0, len(dirty), size):
            some = dirty[at : at + size]
            counts = [session.requests for session in some]
            self._write(
                _TOUCH.command([session_key(session.name) for session in some], [now, self.ttl_seconds, *counts])
            )
        for session in dirty:
            session.is_dirty = False
            session.requests = 0

    # Reading

    @property
    def _can_read(self) -> bool:
        return self._store is not None and self._store.is_available

    @property
    def _can_wait(self) -> bool:
        return self._patient is not None and self._patient.is_available

    def _read_batch(self, wait: float) -> None:
        batch = self._to_read.pop(wait)
        self._reading.setdefault(wait, {}).update(batch)
        task = self._loop.create_task(self._read(batch, wait))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, batch: Batch, wait: float) -> None:
        store = self._patient if wait and self._patient is not None else self._store
        assert self._store is not None and store is not None
        commands: list[Command] = [("HGETALL", session_key(session.name)) for session, _ in batch.values()]
        is_behind = self._store.has_unwritten or store.has_unwritten
        try:
            answers = await store.call(commands, wait or None)
        except StoreError:
            self.counts.unread += len(batch)
            answers = [None] * len(batch)
        for (name, (session, waiting)), answer in zip(batch.items(), answers, strict=True):
            del self._reading[wait][name]
            self._answer(name, session, answer, is_behind=is_behind)
            for found in waiting:
                try:
                    found(session)
                except Exception as error:  # a bug, which must not fail the other requests
                    context = {"message": f"a request of {session!r} is not served", "exception": error}
                    self._loop.call_exception_handler(context)

    def _answer(self, name: str, session: Session, answer: object, *, is_behind: bool) -> None:
        """Apply a reply, None if there was none; `is_behind`: writes were pending when it was read."""
        before = self._sessions.use(name)
        if before is not None:  # cached state stays valid where Redis has none
            session.inherit(before)
            if answer is None or is_behind:
                session.places = before.places
        session.fresh_at = session.seen
        if answer is None or (is_behind and before is not None):
            session.fresh_at += _READ_AGAIN_SECONDS - session.fresh_seconds
        if answer is None:
            session.is_new = False  # unknown, so not counted as new
            session.is_read = before is not None and before.is_read and before.is_fresh(session.seen)
        else:
            try:
                for experiment, arm in session.take(flat(answer)).items():  # another Redis, or lost data
                    self._write_arm(session, experiment, arm)
                self.counts.read += 1
            except (TypeError, ValueError):  # not written by us: ignored
                self.counts.unread += 1
        if name in self._outdated:
            self._outdated.discard(name)
            session.fresh_at = 0.0
        self._sessions.add(name, session)

    # Writing

    def _mark_dirty(self, session: Session, now: float) -> None:
        if not session.is_dirty and self._store is not None:
            session.is_dirty = True
            self._dirty.append(session)
        session.routed = None  # a pin of its client may be due
        session.written = now

    def _write_arm(self, session: Session, experiment: str, arm: str, write: str = "HSETNX") -> None:
        key = session_key(session.name)
        store = self._store if self._patient is None or session.is_sequence else self._patient
        if store is not None:
            store.enqueue((write, key, arm_field(experiment), arm), ("EXPIRE", key, self.ttl_seconds))

    def _write(self, *commands: Command) -> None:
        if self._store is not None:
            self._store.enqueue(*commands)
