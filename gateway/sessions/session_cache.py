"""The sessions that one worker knows, and how they come from Redis and go there.

A session's first request here reads what Redis has of it, all those of one turn of the event loop in one pipeline,
and waits for it no longer than the store's deadline. From then on nothing is asked: what changes is written behind.
Without Redis, or with one that is late, a session goes where hashing says, and is read later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING

from gateway.protocol.sequence import Sequence, name_of
from gateway.redis.address import RedisTopology
from gateway.redis.errors import StoreError
from gateway.redis.script import Command, Script
from gateway.sessions.redis_keys import session_key
from gateway.sessions.session import Session, arm_field, flat, place_field

if TYPE_CHECKING:  # a worker without Redis need not load its client
    from gateway.redis.bounded_client import Store
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


class LruSessions:
    """At most so many sessions, by name. The ones used least recently are forgotten first, about half of them at a
    time: what is used moves to the young, and where these are half of all, the others go."""

    __slots__ = ("_generation", "_old", "_young")

    def __init__(self, most: int) -> None:
        self._generation = max(1, most // 2)
        self._young: dict[str, Session] = {}
        self._old: dict[str, Session] = {}

    def __repr__(self) -> str:
        return f"<LruSessions: {len(self._young)} young, {len(self._old)} old>"

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[Session]:
        yield from self._young.values()
        yield from self._old.values()

    def use(self, name: str) -> Session | None:
        """The session of this name, which is young from now on."""
        found = self._young.get(name)
        if found is None:
            found = self._old.pop(name, None)
            if found is not None:
                self.add(name, found)
        return found

    def look(self, name: str) -> Session | None:
        """The same, as old as it is."""
        return self._young.get(name) or self._old.get(name)

    def add(self, name: str, session: Session) -> Session:
        """Know a session, in place of what was known by its name."""
        if len(self._young) >= self._generation:
            self._old, self._young = self._young, {}
        self._old.pop(name, None)
        self._young[name] = session
        return session

    def pop(self, name: str) -> Session | None:
        """Forget a session."""
        return self._young.pop(name, None) or self._old.pop(name, None)


@dataclass(slots=True)
class SessionCounts:
    """What happened to sessions here since the start."""

    read: int = 0  # from Redis
    unread: int = 0  # gone on without, since Redis was late or away
    created: int = 0
    shed: int = 0  # new ones, from an endpoint that had too much to do
    # By engine, the endpoint that a session left, and why: drained, unavailable, or gone from the rules
    moved: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    # By engine and the endpoint that they ended with
    sequences_lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    # By engine, the endpoint that a sequence left, and why: lost, or drained; another one was told its inputs
    sequences_moved: Counter[tuple[str, str, str]] = field(default_factory=Counter)


# A session that goes on is written down so often, for its count and the time when it was last seen; and often enough
# that Redis does not forget it meanwhile.
_TOUCH_SECONDS = 30.0
_TOUCHES_A_LIFE = 3
# A sequence's id is soon used again by another one, which another worker may have placed: what is known is read anew.
_SEQUENCE_SECONDS = 1.0
# A cached session is read anew after so long, in case that news of it were lost.
_SESSION_SECONDS = 60.0

# Sets what is said first, and counts: KEYS; ARGV: now (ms), time to live (s), and of each key its requests.
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
# So many sessions are written down by one call: one is a tenth of its price. A cluster has each in its own place.
_TOUCHED_AT_ONCE = 64

# After Redis was late for one, it is not asked for it again at once.
_READ_AGAIN_SECONDS = 1.0

Found = Callable[[Session], None]


class SessionCache:
    """What a worker knows of at most `max_sessions` sessions; `ttl` is how long Redis keeps one that is not seen, in
    seconds."""

    def __init__(
        self,
        store: Store | None,
        loop: asyncio.AbstractEventLoop,
        *,
        ttl: float = 3600.0,
        max_sessions: int = 50_000,
        announce: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`announce` hears the name of a session that is somewhere else from now on, for other workers to forget."""
        self._store = store
        self._loop = loop
        self.remember_for(ttl)
        self._announce = announce
        self._known = LruSessions(max_sessions)
        self._asked: dict[str, tuple[Session, list[Found]]] = {}  # to be read in this turn
        self._reading: dict[str, tuple[Session, list[Found]]] = {}
        self._outdated: set[str] = set()  # of those being read: what comes does not count
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: list[Session] = []
        self.counts = SessionCounts()
        if store is not None:
            store.on_return(self.forget_all)

    def __repr__(self) -> str:
        return f"<SessionCache: {len(self._known)} known, {len(self._reading)} being read>"

    @property
    def num_known(self) -> int:
        """How many sessions are known here."""
        return len(self._known)

    def remember_for(self, ttl: float) -> None:
        """Redis keeps a session that is not seen for so many seconds from now on."""
        self._ttl_seconds = max(1, int(ttl))
        self._touch_seconds = min(_TOUCH_SECONDS, ttl / _TOUCHES_A_LIFE)

    # Looking up

    def get(self, session: str, now: float) -> Session | None:
        """What is known of a session; None where Redis should be asked first. `now` is of `time.time`."""
        is_plain = type(session) is str  # nearly always
        name = session if is_plain else name_of(session)
        found = self._known.use(name)
        if found is None:
            return None if self._can_read else self._known.add(name, Session(session, now))
        fresh_for = _SESSION_SECONDS if is_plain else _fresh_for(session)
        if not 0 <= now - found.fresh_at <= fresh_for and self._can_read:  # clocks may be set back
            return None
        found.seen = now
        return found

    def peek(self, session: str, now: float) -> Session:
        """What is known of a session, however old; nothing where it is not known."""
        name = name_of(session)
        return self._known.use(name) or self._known.add(name, Session(session, now))

    def find(self, session: str, found: Found) -> None:
        """Read a session, and tell what is known of it by then: within the store's deadline, in a later turn."""
        name = name_of(session)
        under_way = self._asked.get(name) or self._reading.get(name)
        if under_way is not None:
            under_way[1].append(found)
            return
        if not self._asked:
            self._loop.call_soon(self._read_asked)
        self._asked[name] = Session(session, time()), [found]

    def take(self, session: str, answer: object) -> None:
        """Somebody has read what Redis has of a session: it is so."""
        self._answer(name_of(session), Session(session, time()), answer, is_behind=False)

    def forget(self, name: str) -> None:
        """Somebody else has changed it: what is known here does not count any more."""
        session = self._known.look(name)
        if session is not None:
            session.forget()
        if name in self._reading:
            self._outdated.add(name)

    def forget_all(self) -> None:
        """Redis was away, or news were lost: everything is read anew."""
        for session in self._known:
            session.fresh_at = 0.0
        self._outdated.update(self._reading)

    def forget_homes(self) -> None:
        """Other rules hold: no session keeps engines of those before."""
        for session in self._known:
            session.homes.clear()
            session.led = None

    # Changing

    def count(self, session: Session, now: float) -> None:
        """One more request of it."""
        session.requests += 1
        if session.is_new:
            session.is_new = False
            self.counts.created += 1
        if isinstance(session.session, Sequence):
            session.fresh_at = now  # who has it under way is who knows
        if not 0 <= now - session.written <= self._touch_seconds:
            self._soil(session, now)

    def keep_arm(self, session: Session, experiment: str, arm: str, now: float, *, is_anew: bool = False) -> None:
        """It has this arm from now on, unless it has one in Redis already; `is_anew`: in the place of that."""
        session.arms[experiment] = arm
        session.led = None
        self._tell_arm(session, experiment, arm, "HSET" if is_anew else "HSETNX")
        self._soil(session, now)
        if is_anew:
            self._announce(name_of(session.session))

    def place(self, session: Session, engine: str, url: str | None) -> None:
        """It is at another endpoint than others would expect; None: it is at home again."""
        if url is None:
            session.places.pop(engine, None)
            self._tell(("HDEL", session_key(session.session), place_field(engine)))
        else:
            session.places[engine] = url
            key = session_key(session.session)
            self._tell(("HSET", key, place_field(engine), url), ("EXPIRE", key, self._ttl_seconds))
        if not isinstance(session.session, Sequence):
            self._announce(name_of(session.session))

    def end(self, session: Sequence) -> None:
        """A sequence has ended: its id is free."""
        known = self._known.pop(name_of(session))
        if known is not None:
            known.is_dirty = False
        self._tell(("DEL", session_key(session)))

    def flush(self) -> None:
        """Write down what has changed; called about once a second, and at the end."""
        dirty = [session for session in self._dirty if session.is_dirty]
        self._dirty.clear()
        if self._store is None or not dirty:
            return
        now = int(time() * 1000)
        size = 1 if self._store.address.layout is RedisTopology.CLUSTER else _TOUCHED_AT_ONCE
        for at in range(0, len(dirty), size):
            some = dirty[at : at + size]
            counts = [session.requests for session in some]
            self._tell(
                _TOUCH.command([session_key(session.session) for session in some], [now, self._ttl_seconds, *counts])
            )
        for session in dirty:
            session.is_dirty = False
            session.requests = 0

    # Reading

    @property
    def _can_read(self) -> bool:
        return self._store is not None and self._store.is_available

    def _read_asked(self) -> None:
        self._reading |= self._asked
        asked, self._asked = self._asked, {}
        task = self._loop.create_task(self._read(asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, asked: dict[str, tuple[Session, list[Found]]]) -> None:
        assert self._store is not None
        commands: list[Command] = [("HGETALL", session_key(session.session)) for session, _ in asked.values()]
        is_behind = self._store.has_unwritten
        try:
            answers = await self._store.ask(commands)
        except StoreError:
            self.counts.unread += len(asked)
            answers = [None] * len(asked)
        for (name, (session, waiting)), answer in zip(asked.items(), answers, strict=True):
            del self._reading[name]
            self._answer(name, session, answer, is_behind=is_behind)
            for found in waiting:
                try:
                    found(session)
                except Exception as error:  # a fault of ours, which must not be that of all others
                    told = {"message": f"a request of {session!r} is not served", "exception": error}
                    self._loop.call_exception_handler(told)

    def _answer(self, name: str, session: Session, answer: object, *, is_behind: bool) -> None:
        """What Redis says of a session, None where it said nothing; `is_behind`: it had not been told all by then."""
        before = self._known.use(name)
        if before is not None:  # what it was without Redis is still true where Redis says nothing
            session.inherit(before)
            if answer is None or is_behind:
                session.places = before.places
        session.fresh_at = session.seen
        if answer is None or (is_behind and before is not None):
            session.fresh_at += _READ_AGAIN_SECONDS - _fresh_for(session.session)
        if answer is None:
            session.is_new = False  # for all that is known here
        else:
            try:
                for experiment, arm in session.take(flat(answer)).items():  # it is another Redis, or has lost its data
                    self._tell_arm(session, experiment, arm)
                self.counts.read += 1
            except (TypeError, ValueError):  # somebody else has written there: it is as good as nothing
                self.counts.unread += 1
        if name in self._outdated:
            self._outdated.discard(name)
            session.fresh_at = 0.0
        self._known.add(name, session)

    # Writing

    def _soil(self, session: Session, now: float) -> None:
        if not session.is_dirty and self._store is not None:
            session.is_dirty = True
            self._dirty.append(session)
        session.written = now

    def _tell_arm(self, session: Session, experiment: str, arm: str, write: str = "HSETNX") -> None:
        key = session_key(session.session)
        self._tell((write, key, arm_field(experiment), arm), ("EXPIRE", key, self._ttl_seconds))

    def _tell(self, *commands: Command) -> None:
        if self._store is not None:
            self._store.tell(*commands)


def _fresh_for(session: str) -> float:
    """How long what was read of it counts, in seconds."""
    return _SEQUENCE_SECONDS if isinstance(session, Sequence) else _SESSION_SECONDS
