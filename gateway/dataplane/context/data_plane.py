"""What all connections of a worker share: the snapshot in force, the counters, the wheel of deadlines."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Collection
from dataclasses import asdict
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.dataplane.context.active_request import ActiveRequest
from gateway.dataplane.context.call_head import CallReader
from gateway.dataplane.context.decision_log import DecisionSampler, Known
from gateway.dataplane.context.feedback import FeedbackCollector
from gateway.dataplane.context.head_reader import Reader
from gateway.dataplane.context.limits_snapshot import limits_counted
from gateway.dataplane.context.session_affinity import SessionAffinity
from gateway.dataplane.context.snapshot import (
    NO_LOADS,
    NO_RUNS,
    NO_WEIGHTS,
    Health,
    Loads,
    Models,
    Runs,
    Snapshot,
    Weights,
)
from gateway.dataplane.context.tap import Tap
from gateway.events.event_bus import EventBus
from gateway.events.event_types import ConditionChanged, EndpointDrained, SessionMoved
from gateway.limits.limiter import Limiter
from gateway.net import descriptors
from gateway.net.timer_wheel import TimerWheel
from gateway.observability.access_log import AccessLog, AccessLogEntry
from gateway.observability.metrics import CountersSnapshot as Counters
from gateway.observability.metrics import Metrics
from gateway.observability.redis_stats import StoreUse
from gateway.observability.session_stats import SessionUse
from gateway.protocol.engine_load import Readiness
from gateway.routing.decision import Target
from gateway.routing.table import used_parameters
from gateway.sessions.redis_sequence_log import RedisSequenceLog
from gateway.sessions.sequence_log import LocalSequenceLog, SequenceLog
from gateway.sessions.session_cache import SessionCache
from gateway.wire.http1.head import RequestHead

if TYPE_CHECKING:  # a worker without Redis need not load its client
    from gateway.redis.bounded_client import Store

# How often connections are looked at for having been silent too long.
_SWEEP_SECONDS = 1.0


_CONDITIONS = {condition.value: condition for condition in Readiness}


class Connection(Protocol):
    """A client's connection, as the data plane sees it."""

    @property
    def peer(self) -> str:
        """Its address."""
        ...

    def live(self) -> list[ActiveRequest]:
        """The requests under way on it."""
        ...

    def sweep(self, now: float) -> None: ...

    def drain(self) -> None:
        """Close when idle for a moment, else after the reply."""
        ...

    def abort(self) -> None: ...


class DataPlane:
    """One worker's data plane. `read` and `read_call` read heads by the snapshot in force; `store` and `news` are None
    where there is no Redis, `captures` is where the shadow process takes what is mirrored, "" where there is none."""

    def __init__(
        self,
        settings: Settings,
        rules: RulesSpec,
        number: int,
        health: Health,
        store: Store | None = None,
        news: EventBus | None = None,
        captures: str = "",
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.store = store
        self.news = news
        self.metrics = Metrics(settings.feedback_requests)
        self.wheel = TimerWheel(self.loop)
        self.limiter = Limiter(settings.workers, store)
        self.tap = Tap(self.loop, captures)
        self.connections: set[Connection] = set()
        self._descriptors = descriptors.DescriptorWatch()
        self.num_lingering = 0  # of the connections: answered for the last time, and read on for a moment
        self.is_draining = False
        self.tells_ends = False  # whether anybody is told of requests that have ended
        self.keeps_bodies = False  # until then, for what rules could have asked of them
        self._access_log: AccessLog | None = None
        self._sampler: DecisionSampler | None = None
        self._used_parameters = used_parameters(rules)
        self.access_log = AccessLog(settings.log_format) if settings.access_log else None
        book = SessionCache(store, self.loop, ttl=rules.identity.session_ttl, announce=self._announce)
        self.keeper = SessionAffinity(book, _inputs(store, self.loop, book, settings.workers))
        if news is not None:
            news.listen(SessionMoved, lambda item: book.forget(item.name))
            news.on_missed(book.forget_all)
        self.feedback = FeedbackCollector(self.metrics.arms, book, news)
        self._health = health
        self._models: Models = {}
        self._drained: frozenset[tuple[str, str]] = frozenset()
        self._weights, self._runs = NO_WEIGHTS, NO_RUNS
        self.snapshot, self.read, self.read_call = self._compile(rules, number, None)
        self.limiter.use(self.snapshot.limits)
        self._open_tap()
        # Ids that differ between workers and restarts, and cost a format each.
        self._id_prefix = f"{os.getpid():x}-{random.getrandbits(40):010x}-".encode()
        self._next_id = count(1).__next__
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def __repr__(self) -> str:
        return f"<DataPlane {self.snapshot!r}, {len(self.connections)} connections>"

    @property
    def access_log(self) -> AccessLog | None:
        return self._access_log

    @access_log.setter
    def access_log(self, access_log: AccessLog | None) -> None:
        self._access_log = access_log
        self._look_who_listens()

    def watch(self, sampler: DecisionSampler | None) -> None:
        """Have requests that end told by this one from now on; None: no more."""
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = sampler
        if sampler is not None:
            sampler.asked = self._used_parameters
        self._look_who_listens()

    def _look_who_listens(self) -> None:
        self.tells_ends = self._access_log is not None or self._sampler is not None
        self.keeps_bodies = self._sampler is not None and self._sampler.with_body_facts

    def log(
        self,
        peer: str,
        head: RequestHead | None,
        status: int,
        reason: str,
        seconds: float,
        request_id: bytes = b"",
        target: Target | None = None,
        endpoint: str = "",
        known: Known | None = None,
    ) -> None:
        """Tell of a request that has ended, if anybody wants to know; head None: it could not be read. `known` is what
        the rules knew of it."""
        if self._sampler is not None and known is not None:
            self._sampler.note(known, status, reason, seconds, request_id, target, endpoint)
        if self._access_log is not None:
            method, path = (head.method, head.target.decode("latin-1")) if head else ("-", "-")
            self._write(peer, method, path, status, reason, seconds, request_id, target, endpoint)

    def log_call(
        self,
        peer: str,
        asked: tuple[str, str],
        status: int,
        reason: str,
        seconds: float,
        request_id: bytes = b"",
        target: Target | None = None,
        endpoint: str = "",
        known: Known | None = None,
    ) -> None:
        """The same for a gRPC call: `asked` are its method and path, `status` is the HTTP status beside its own."""
        if self._sampler is not None and known is not None:
            self._sampler.note(known, status, reason, seconds, request_id, target, endpoint)
        if self._access_log is not None:
            self._write(peer, *asked, status, reason, seconds, request_id, target, endpoint)

    def _write(
        self,
        peer: str,
        method: str,
        path: str,
        status: int,
        reason: str,
        seconds: float,
        request_id: bytes,
        target: Target | None,
        endpoint: str,
    ) -> None:
        assert self._access_log is not None
        self._access_log.write(
            AccessLogEntry(
                peer=peer,
                method=method,
                target=path,
                route=target.route if target else "",
                arm=(target.arm or "") if target else "",
                engine=target.engine if target else "",
                endpoint=endpoint,
                status=status,
                reason=reason,
                seconds=seconds,
                request_id=request_id.decode("latin-1"),
            )
        )

    def new_request_id(self) -> bytes:
        return b"%b%x" % (self._id_prefix, self._next_id())

    def use_rules(self, rules: RulesSpec, number: int) -> None:
        """Swap the rules; requests under way end with those they started with."""
        before = self.snapshot
        self.keeper.book.remember_for(rules.identity.session_ttl)
        self.snapshot, self.read, self.read_call = self._compile(rules, number, before)
        self.limiter.use(self.snapshot.limits)
        self._open_tap()
        self._used_parameters = used_parameters(rules)
        if self._sampler is not None:
            self._sampler.asked = self._used_parameters
        self.keeper.book.forget_homes()
        before.retire(self.snapshot)

    def _open_tap(self) -> None:
        if self.snapshot.is_mirrored:
            self.tap.open()

    def _compile(self, rules: RulesSpec, number: int, before: Snapshot | None) -> tuple[Snapshot, Reader, CallReader]:
        snapshot = Snapshot(rules, number, self.settings, self.metrics, before)
        snapshot.set_health(self._health, self._models)
        snapshot.set_drained(self._drained)
        snapshot.set_weights(self._weights, self._runs)
        return snapshot, Reader(snapshot, self.settings), CallReader(snapshot, self.settings)

    def set_weights(self, weights: Weights, runs: Runs = NO_RUNS) -> None:
        """Arms of experiments weigh this much from now on, by these rules and those to come, as far as they have them;
        what heads were decided to be by other weights is forgotten. `runs` are those that have set them."""
        self._weights, self._runs = weights, runs
        self.snapshot.set_weights(weights, runs)
        self.read, self.read_call = Reader(self.snapshot, self.settings), CallReader(self.snapshot, self.settings)

    def set_health(self, health: Health, models: Models | None = None, loads: Loads = NO_LOADS) -> None:
        """Take over what the probes found; models None: as they were."""
        self._health = health
        if models is not None:
            self._models = models
        self.snapshot.set_health(health, self._models, loads)

    def set_drained(self, drained: Collection[tuple[str, str]]) -> None:
        """These endpoints, by engine and url, get no new work from now on; all others do."""
        self._drained = frozenset(drained)
        self.snapshot.set_drained(drained)

    def listen_alone(self) -> None:
        """The control process is gone, and nobody here probes: take other replicas' word for conditions and drains."""
        if self.news is not None:
            self.news.listen(ConditionChanged, self._hear_condition)
            self.news.listen(EndpointDrained, self._hear_drained)

    def _hear_condition(self, item: ConditionChanged) -> None:
        condition = _CONDITIONS.get(item.condition)
        if condition is not None:
            self.set_health({**self._health, (item.engine, item.url): condition})

    def _hear_drained(self, item: EndpointDrained) -> None:
        key = item.engine, item.url
        self.set_drained(self._drained | {key} if item.is_draining else self._drained - {key})

    def _announce(self, session: str) -> None:
        if self.news is not None:
            self.news.tell(SessionMoved(session))

    def counters(self) -> Counters:
        """All that the control process asks for."""
        endpoints = [
            (name, endpoint) for name, engine in self.snapshot.engines.items() for endpoint in engine.endpoints
        ]
        return Counters(
            series=self.metrics.snapshot(),
            connections=len(self.connections),
            rules_number=self.snapshot.number,
            breakers_open={(name, endpoint.url): not endpoint.breaker.is_closed for name, endpoint in endpoints},
            loads={
                (name, endpoint.url): endpoint.load
                for name, endpoint in endpoints
                if endpoint.load is not None and endpoint.engine.load.source == "orca"
            },
            limits=limits_counted(self.limiter),
            arms=self.metrics.arms.counted(),
            store=self._store_use(),
            sessions=self._session_use(),
            captures=dict(self.tap.counts),
            descriptors=(descriptors.num_open(), descriptors.limit()),
        )

    def _session_use(self) -> SessionUse:
        book = self.keeper.book
        counts = book.counts
        return SessionUse(
            read=counts.read,
            unread=counts.unread,
            created=counts.created,
            shed=counts.shed,
            moved=dict(counts.moved),
            sequences_lost=dict(counts.sequences_lost),
            sequences_moved=dict(counts.sequences_moved),
            known=book.num_sessions,
        )

    def _store_use(self) -> StoreUse | None:
        store, news = self.store, self.news
        if store is None or news is None:
            return None
        return StoreUse(
            **asdict(store.counts), heard=news.heard, gaps=news.gaps, available=store.is_available, live=news.is_live
        )

    def drain(self) -> None:
        """Close what is idle, in a moment; what is busy closes after its reply."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.drain()

    def close(self) -> None:
        """Stop at once."""
        self._sweeper.cancel()
        self.keeper.book.flush()
        for connection in list(self.connections):
            connection.abort()
        for engine in self.snapshot.engines.values():
            engine.close_idle_connections()
        self.limiter.close()
        self.tap.close()
        if self._access_log is not None:
            self._access_log.flush()
        self.watch(None)

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)  # first, so that nothing can end it
        now = monotonic()
        for connection in list(self.connections):
            connection.sweep(now)
        for engine in self.snapshot.engines.values():
            for endpoint in engine.endpoints:
                endpoint.close_stale(now)
        self._descriptors.look()
        self.wheel.rest()
        self.keeper.book.flush()
        self.limiter.sweep(now)


def _inputs(store: Store | None, loop: asyncio.AbstractEventLoop, book: SessionCache, num_workers: int) -> SequenceLog:
    """Who keeps sequences' inputs, of routes that replay them."""
    return RedisSequenceLog(store, loop, book.take) if store is not None else LocalSequenceLog(num_workers)
