"""What all connections of a worker share: the snapshot in force, the counters, the deadlines."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import finalize

from gateway.config.auth_specs import ApiKeySpec
from gateway.config.engine_specs import EndpointSpec
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec, with_endpoints
from gateway.dataplane.context.active_requests import Connection, end_revoked
from gateway.dataplane.context.authenticated_call_reader import AuthenticatedCallReader
from gateway.dataplane.context.authenticated_head_reader import AuthenticatedHeadReader
from gateway.dataplane.context.call_reader import CallReader
from gateway.dataplane.context.capture import Tap
from gateway.dataplane.context.endpoint_waits import EndpointWaits
from gateway.dataplane.context.feedback import FeedbackCollector
from gateway.dataplane.context.head_reader import HeadReader
from gateway.dataplane.context.held_bodies import HeldBodies, ReadAhead
from gateway.dataplane.context.loop_lag import LoopLag
from gateway.dataplane.context.request_log import RequestLog
from gateway.dataplane.context.session_affinity import SessionAffinity
from gateway.dataplane.context.snapshot import (
    NO_RUNS,
    NO_WEIGHTS,
    Health,
    Loads,
    Models,
    Parts,
    Runs,
    Snapshot,
    Weights,
    free,
)
from gateway.events.event_bus import EventBus
from gateway.events.event_types import ConditionChanged, EndpointDrained, SessionMoved
from gateway.limits.budget import Budgets
from gateway.limits.limiter import Limiter
from gateway.net import descriptors
from gateway.net.slices import run_in_slices
from gateway.net.timer_wheel import TimerWheel
from gateway.net.tls_files import reload_changed
from gateway.observability.access_log import access_log_of
from gateway.observability.audit_record import AuditRecord
from gateway.observability.metrics import Metrics
from gateway.observability.spans import SpanRecorder
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.region_names import RegionNames
from gateway.routing.steps import Steps, run_now
from gateway.sessions.sequence_log import LocalSequenceLog, RedisSequenceLog, SequenceLog
from gateway.sessions.session_cache import SessionCache
from gateway.upstream.cached_blocks import BlockChanges
from gateway.upstream.engine import Key
from gateway.upstream.tracked_prefix_index import SeenPrompt, TrackedPrefixIndex

T = TypeVar("T")

if TYPE_CHECKING:  # a worker without Redis need not load its client
    from gateway.redis.bounded_client import BoundedRedis

NO_CHANGES: Mapping[Key, Any] = MappingProxyType({})
# How often connections are checked for being silent too long.
_SWEEP_SECONDS = 1.0
# Between two looks at the keys of requests under way, where they do not change: one may have expired.
_REVOCATION_SECONDS = 10.0
# Ids made at a time: a call of the kernel costs as much as twenty of them.
_IDS_AT_ONCE = 256
# New prompts are collected for this long, and then reported together.
_GATHER_SECONDS = 0.02
_CONDITIONS = {condition.value: condition for condition in Readiness}


def random_ids() -> Iterator[bytes]:
    """Ids of requests that nobody can guess, as feedback by id must not be about the requests of others: 128 random
    bits, in hexadecimal digits."""
    while True:
        digits = os.urandom(16 * _IDS_AT_ONCE).hex().encode("ascii")
        for start in range(0, len(digits), 32):
            yield digits[start : start + 32]


class DataPlane:
    """One worker's data plane. `read` and `read_call` read heads by the snapshot in force.

    `store` and `event_bus` are None where there is no Redis, `captures` is where the shadow process takes what is
    mirrored, "" where there is none.
    """

    def __init__(
        self,
        settings: Settings,
        rules: RulesSpec,
        number: int,
        health: Health,
        store: BoundedRedis | None = None,
        event_bus: EventBus | None = None,
        captures: str = "",
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.store = store
        self.arm_store: BoundedRedis | None = None  # the same Redis, for arms of sessions, once rules have such
        self.event_bus = event_bus
        self.metrics = Metrics(settings.feedback_requests)
        self.wheel = TimerWheel(self.loop)
        self.endpoint_waits = EndpointWaits(self.loop.call_later)
        self.limiter = Limiter(settings.workers, store)
        self.budgets = Budgets(self.loop.call_later)
        self.tap = Tap(self.loop, captures)
        self.connections: set[Connection] = set()
        limits = settings.limits
        self.json_bounds = limits.json_bounds
        self.held = HeldBodies(limits.max_buffered_bytes, limits.max_connection_bytes)
        self.loop_lag = LoopLag(self.loop, limits.max_loop_lag)
        self.read_ahead = ReadAhead(limits.max_read_ahead_bytes)
        self._descriptors = descriptors.DescriptorWatch()
        self.num_lingering = 0  # of the connections: answered for the last time, and read on for a moment
        self.is_unready = False  # it drains soon
        self.is_draining = False
        self.spans = SpanRecorder(settings.tracing, self.loop.call_later) if settings.tracing is not None else None
        self.request_log = RequestLog(access_log_of(settings), self.spans, share=settings.access_log_sample)
        book = SessionCache(store, self.loop, ttl=rules.identity.session_ttl, announce=self._announce)
        inputs: SequenceLog  # for routes that replay sequences
        if store is not None:
            inputs = RedisSequenceLog(store, self.loop, book.take)
        else:
            inputs = LocalSequenceLog(settings.workers)
        self.affinity = SessionAffinity(book, inputs)
        if event_bus is not None:
            event_bus.subscribe(SessionMoved, lambda item: book.forget(item.name))
            event_bus.on_gap(book.forget_all)
        self.feedback = FeedbackCollector(self.metrics.arms, book, event_bus)
        # Until clients share memory, engines have no region of such a name
        self.region_names = RegionNames(secrets.token_bytes(32), self.json_bounds)
        self.by_control_memory: Callable[[], Awaitable[bool]] | None = None
        self._renames_regions = False
        self.on_audited: Callable[[AuditRecord], None] = lambda record: None
        self.by_control_models: Callable[[Collection[Key]], Awaitable[bool]] | None = None
        # New prompts of engines whose caches are followed
        self.on_prompts: Callable[[str, Sequence[SeenPrompt]], None] = lambda engine, prompts: None
        self._health = health
        self._endpoints: dict[str, tuple[EndpointSpec, ...]] = {}  # of engines with sources, as far as they are known
        self._gone: set[Key] = set()  # endpoints that have left, whose counters are still their own
        self._models: Models = {}
        self._drained: frozenset[tuple[str, str]] = frozenset()
        self._keys: tuple[Collection[ApiKeySpec], bool] = (), False  # in Redis, and whether they are current
        self._judged_at = 0.0  # when the keys of the requests under way were last looked at
        self._weights, self._runs = NO_WEIGHTS, NO_RUNS
        # While rules are compiled: their snapshot, once it takes over changes, too, and the loads reported till then
        self._next: Snapshot | None = None
        self._loads: dict[Key, Load | None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._use(run_now(self._compile(rules, number, None)))
        self.new_request_id: Callable[[], bytes] = random_ids().__next__
        self.swept_at = monotonic()  # the last time
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def too_many_connections(self, peer: str) -> GatewayError | None:
        """Why a new connection of this address is refused; None where it is not. Lingering connections do not count:
        many refused clients must not keep others out."""
        limits = self.settings.limits
        most, most_of_address = limits.max_connections, limits.max_per_address
        if most and len(self.connections) - self.num_lingering >= most:
            return GatewayError(ErrorKind.OVERLOADED, f"{most} connections are open already (--max-connections)")
        if most_of_address and sum(each.peer == peer for each in self.connections) >= most_of_address:
            what = f"{most_of_address} connections of this address are open already (--max-per-address)"
            return GatewayError(ErrorKind.OVERLOADED, what)
        return None

    def use_rules(self, rules: RulesSpec, number: int) -> None:
        """Swap the rules; requests under way end with those they started with."""
        run_now(self.change_rules(rules, number))

    def change_rules(self, rules: RulesSpec, number: int) -> Steps[None]:
        """Swap the rules in steps, between which requests are served by the old ones."""
        before = self.snapshot
        try:
            snapshot = yield from self._compile(rules, number, before)
        finally:
            self._next = self._loads = None
        # All that changes with the rules, at once
        # by a part that only the snapshot refers to: compiled classes take no weak references
        finalize(before.remembered_names, self._free_soon, before.parts()).atexit = False
        self.affinity.book.remember_for(rules.identity.session_ttl)
        self._use(snapshot)
        self.affinity.book.forget_hashed_endpoints()
        yield
        yield from before.retire(snapshot)

    async def share_memory(self) -> None:
        """Have all workers use one secret for names of regions.

        Raises: GatewayError(OVERLOADED) where the control process does not answer.
        """
        if self._renames_regions:
            return
        if self.by_control_memory is None:
            self.rename_regions(secrets.token_bytes(32))
        elif not await self.by_control_memory():
            raise GatewayError(ErrorKind.OVERLOADED, "the control process does not answer: try again")

    async def models_changed(self, keys: Collection[Key]) -> bool:
        """Other models may be at these endpoints, by engine and URL: return once the workers know, or soon after.
        Whether there is somebody to read their lists."""
        return self.by_control_models is not None and (not keys or await self.by_control_models(keys))

    def look_at_models(self, keys: Collection[Key]) -> None:
        """The same, in the background."""
        task = self.loop.create_task(self.models_changed(keys))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def rename_regions(self, secret: bytes) -> None:
        """From now on, inferences may name regions of their clients."""
        self.region_names = RegionNames(secret, self.json_bounds)
        self._renames_regions = True
        for snapshot in self._snapshots():
            snapshot.renames_regions = True
        self._use_readers()

    def _use(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._wait_for_arms(snapshot.arm_wait)
        self._judged_at = 0.0
        snapshot.renames_regions = self._renames_regions
        self._use_readers()
        self.loop_lag.watch_for(snapshot.engines.values())
        self.endpoint_waits.use(snapshot.engines)
        self.limiter.use(snapshot.limits)
        self.budgets.use(snapshot.budgets, snapshot.prices)
        self.request_log.use_parameters(snapshot.parameters_used)
        if snapshot.is_mirrored:
            self.tap.open()

    def _wait_for_arms(self, seconds: float) -> None:
        """Have requests of sessions wait so long for their arms in Redis, where others wait less: by a store of its
        own, whose connections and breaker are apart from those of all else."""
        store = self.store
        if store is None or seconds <= store.deadline:
            self.affinity.book.wait_for_arms(None)
        elif self.arm_store is None:
            self.arm_store = type(store)(store.address, deadline=seconds, is_quiet=True, limit="lookup_timeout")
            self.arm_store.on_return(self.affinity.book.forget_all)
            self.affinity.book.wait_for_arms(self.arm_store)
            opening = self.loop.create_task(self.arm_store.open())
            self._tasks.add(opening)
            opening.add_done_callback(self._tasks.discard)
        else:
            self.arm_store.deadline = seconds
            self.affinity.book.wait_for_arms(self.arm_store)

    def _use_readers(self) -> None:
        """Read heads by the snapshot in force."""
        snapshot, settings = self.snapshot, self.settings
        if snapshot.identification is None:
            self.read, self.read_call = HeadReader(snapshot, settings), CallReader(snapshot, settings)
        else:
            snapshot.identification.use_stored_keys(*self._keys)
            self.read = AuthenticatedHeadReader(snapshot, settings, snapshot.identification)
            self.read_call = AuthenticatedCallReader(snapshot, settings, snapshot.identification)

    def _compile(self, rules: RulesSpec, number: int, before: Snapshot | None) -> Steps[Snapshot]:
        loads = self._loads = {}
        self._endpoints = {name: known for name, known in self._endpoints.items() if name in rules.engines}
        snapshot = yield from Snapshot.compiled(
            with_endpoints(rules, self._endpoints), number, self.settings, self.metrics, before
        )
        self._next = snapshot
        for engine in snapshot.engines.values():
            if engine.spec.sources and engine.name in self._endpoints:  # they may have changed meanwhile
                engine.set_endpoints(self._endpoints[engine.name])
            if isinstance(engine.prefixes, TrackedPrefixIndex):
                engine.prefixes.on_seen = partial(self._prompt_seen, engine.name)
            engine.set_health(self._health, self._models)
            engine.set_drained(self._drained)
            for endpoint in engine.endpoints:
                if endpoint.load is None and (load := loads.get((engine.name, endpoint.url))) is not None:
                    engine.observe_load(endpoint, load)
            yield
        snapshot.set_weights(self._weights, self._runs)
        return snapshot

    def _free_soon(self, parts: Parts) -> None:
        """No request uses a snapshot any more."""
        if not self.loop.is_closed():
            self._start(free(parts))

    def _start(self, steps: Steps[None]) -> None:
        task = self.loop.create_task(run_in_slices(steps))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def set_weights(self, weights: Weights, runs: Runs = NO_RUNS) -> None:
        """Arms of experiments weigh this much from now on, by these rules and those to come, as far as they have them;
        what heads were decided to be by other weights is forgotten. `runs` are those that have set them."""
        self._weights, self._runs = weights, runs
        self.snapshot.set_weights(weights, runs)
        self._use_readers()

    def set_keys(self, keys: Collection[ApiKeySpec], *, is_current: bool) -> None:
        """Take over the API keys in Redis; what heads were found to be by other keys is forgotten."""
        self._keys = keys, is_current
        self._judged_at = 0.0
        self._use_readers()

    def set_health(self, health: Health, models: Models | None = None) -> None:
        """Take over what the probes found; models None: as they were."""
        self._health = health
        if models is not None:
            self._models = models
        for snapshot in self._snapshots():
            snapshot.set_health(health, self._models)

    def update_health(
        self,
        conditions: Mapping[Key, Readiness | None],
        models: Mapping[Key, AdvertisedModels | None] = NO_CHANGES,
        loads: Loads = NO_CHANGES,
    ) -> None:
        """Take over what has changed since."""
        if conditions:
            self._health = _updated(self._health, conditions)
        if models:
            self._models = _updated(self._models, models)
        if self._loads is not None:
            self._loads |= loads
        now = monotonic()
        for snapshot in self._snapshots():
            snapshot.update_health({**conditions, **models, **loads}, self._health, self._models, models, loads, now)

    def set_endpoints(self, endpoints: Mapping[str, tuple[EndpointSpec, ...]]) -> None:
        """These are the endpoints of engines with sources from now on. Of those that have left, requests under way end
        and connections close."""
        self._endpoints |= endpoints
        for snapshot in self._snapshots():
            for name, specs in endpoints.items():
                engine = snapshot.engines.get(name)
                if engine is None or not engine.spec.sources:
                    continue
                left = engine.set_endpoints(specs)
                engine.set_health(self._health, self._models)
                engine.set_drained(self._drained)
                for endpoint in left:
                    endpoint.retire()
                if left:
                    self._gone |= {(name, endpoint.url) for endpoint in left}
                    self._start(snapshot.forget(name, left))
                self._gone -= {(name, endpoint.url) for endpoint in specs}
        self.affinity.book.forget_hashed_endpoints()

    def update_cached_blocks(self, engine: str, changes: Mapping[str, BlockChanges]) -> None:
        """Take over what the prefix caches of an engine's endpoints hold now."""
        for snapshot in self._snapshots():
            used = snapshot.engines.get(engine)
            if used is not None and isinstance(used.prefixes, TrackedPrefixIndex):
                used.prefixes.apply(changes, monotonic())

    def _prompt_seen(self, engine: str, index: TrackedPrefixIndex) -> None:
        """Report it in a moment, with those that follow."""

        def report() -> None:
            self.on_prompts(engine, index.take_seen())

        self.loop.call_later(_GATHER_SECONDS, report)

    def set_drained(self, drained: Collection[tuple[str, str]]) -> None:
        """These endpoints, by engine and url, get no new work from now on; all others do."""
        self._drained = frozenset(drained)
        for snapshot in self._snapshots():
            snapshot.set_drained(drained)

    def _snapshots(self) -> list[Snapshot]:
        """Those that take over what changes: the one in force, and the next, where it is almost compiled."""
        return [self.snapshot] if self._next is None else [self.snapshot, self._next]

    def listen_alone(self) -> None:
        """Follow other replicas' conditions and drains: the control process is gone, and with it the probes."""
        if self.event_bus is not None:
            self.event_bus.subscribe(ConditionChanged, self._on_condition)
            self.event_bus.subscribe(EndpointDrained, self._on_drained)

    def _on_condition(self, item: ConditionChanged) -> None:
        condition = _CONDITIONS.get(item.condition)
        if condition is not None:
            self.update_health({(item.engine, item.url): condition})

    def _on_drained(self, item: EndpointDrained) -> None:
        key = item.engine, item.url
        self.set_drained(self._drained | {key} if item.is_draining else self._drained - {key})

    def _announce(self, session: str) -> None:
        if self.event_bus is not None:
            self.event_bus.publish(SessionMoved(session))

    def drain(self) -> None:
        """Close what is idle, in a moment; what is busy closes after its reply."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.drain()

    def close(self) -> None:
        """Stop at once."""
        self._sweeper.cancel()
        self.loop_lag.stop()
        for task in self._tasks:
            task.cancel()
        self.affinity.book.flush()
        for connection in list(self.connections):
            connection.abort()
        for engine in self.snapshot.engines.values():
            engine.close_idle_connections()
        self.limiter.close()
        self.tap.close()
        self.request_log.close()

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)  # first, so that nothing can end it
        now = self.swept_at = monotonic()
        for connection in list(self.connections):
            connection.sweep(now)
        self._start(self.snapshot.sweep(now))
        if self._gone:
            self._gone = self.metrics.merge_gone(self._gone)
        identification = self.snapshot.identification
        if identification is not None and now - self._judged_at > _REVOCATION_SECONDS:
            self._judged_at = now
            self._start(end_revoked(self.connections, identification.is_valid))
        self._descriptors.look()
        reload_changed()
        self.wheel.rest()
        self.affinity.book.flush()
        self.limiter.sweep(now)


def _updated(known: Mapping[Key, T], changes: Mapping[Key, T | None]) -> dict[Key, T]:
    return {key: value for key, value in {**known, **changes}.items() if value is not None}
