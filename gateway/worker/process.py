"""A worker: the data plane and its listeners, controlled over a socket pair.

Without its control process a worker continues to serve by the last rules and the last health until it gets a signal.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import socket
import ssl
from contextlib import suppress
from time import monotonic
from typing import Any

from gateway.config.settings import ListenerTls, Settings
from gateway.control.channel import ControlledProcess, run_child
from gateway.control.messages import (
    ActiveRequests,
    Cancelled,
    CancelRequest,
    Counters,
    Decisions,
    Drain,
    FeedbackCounted,
    GetCounters,
    ListRequests,
    Message,
    Serving,
    SetDrained,
    SetHealth,
    SetLogLevel,
    SetWeights,
    Start,
    TakeFeedback,
    UseRules,
    Watch,
    WorkerFailed,
)
from gateway.dataplane.context.active_requests import cancel_requests, list_requests
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.decision_log import DecisionSampler
from gateway.dataplane.context.worker_counters import counters_of
from gateway.dataplane.listener import ProtocolDetector
from gateway.events.event_bus import EventBus
from gateway.observability.logs import set_log_level, set_up_logging
from gateway.protocol.feedback import Rating
from gateway.redis.bounded_client import Store

_log = logging.getLogger("gateway.worker")

_BACKLOG = 4096
# Longer than the half second for which the control process waits for other workers.
_FEEDBACK_SECONDS = 1.0
# The hot path creates no reference cycles; the default threshold of 700 would make collections cost more than routing.
_GC_THRESHOLD = 20_000

# <malloc.h>: the size from which a block is mapped on its own, and how much free memory is kept at the top.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BUFFER_BYTES = 16 * 1024 * 1024


class Worker(ControlledProcess):
    """Serves connections as the control process directs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._plane: DataPlane | None = None
        self._servers: list[asyncio.Server] = []
        self._ratings: dict[int, asyncio.Future[bool]] = {}  # passed to other workers, by token
        self._last_token = 0

    def control_lost(self) -> None:
        if self._plane is None:
            self.stopping.set()
        elif not self.stopping.is_set():
            self._plane.listen_alone()
            number = self._plane.snapshot.number
            _log.error("the control process is gone; worker %d serves on with rules %d", os.getpid(), number)

    async def handle(self, message: Message) -> None:
        if isinstance(message, Start):
            await self._start(message)
        elif self._plane is None:
            self.send(WorkerFailed(f"{type(message).__name__} came before Start"))
        elif isinstance(message, UseRules):
            self._use_rules(self._plane, message)
        elif isinstance(message, SetHealth):
            self._plane.set_health(message.health, message.models, message.loads)
        elif isinstance(message, SetDrained):
            self._plane.set_drained(message.endpoints)
        elif isinstance(message, SetLogLevel):
            set_log_level(message.level)
        elif isinstance(message, ListRequests):
            requests = list_requests(self._plane.connections, os.getpid(), monotonic(), message.limit)
            self.send(ActiveRequests(message.token, requests))
        elif isinstance(message, CancelRequest):
            self.send(Cancelled(message.token, cancel_requests(self._plane.connections, os.getpid(), message.id)))
        elif isinstance(message, SetWeights):
            self._plane.set_weights(message.weights, message.runs)
        elif isinstance(message, TakeFeedback):
            self.send(FeedbackCounted(message.token, _count_rating(self._plane, message.rating)))
        elif isinstance(message, FeedbackCounted):
            counted = self._ratings.pop(message.token, None)
            if counted is not None and not counted.done():
                counted.set_result(message.is_counted)
        elif isinstance(message, Watch):
            self._watch(self._plane, message)
        elif isinstance(message, GetCounters):
            self.send(Counters(message.token, counters_of(self._plane)))
        elif isinstance(message, Drain):
            self.stopping.set()

    async def close(self) -> None:
        """Stop accepting; let what is in flight end, within the limit."""
        plane = self._plane
        if plane is None:
            return
        for server in self._servers:
            server.close()
        plane.drain()
        deadline = asyncio.get_running_loop().time() + plane.settings.drain_timeout
        while plane.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        if plane.connections:
            _log.warning("%d requests did not end within %g s", len(plane.connections), plane.settings.drain_timeout)
        plane.close()
        if plane.news is not None:
            await plane.news.close()
        if plane.store is not None:
            await plane.store.close()
        self.send(Counters(0, counters_of(plane)))
        with suppress(OSError, TimeoutError):  # the control process may be gone
            await asyncio.wait_for(self.writer.drain(), 1.0)

    async def _pass_rating(self, rating: Rating) -> bool:
        """Whether another worker of this gateway has counted a rating."""
        if self.writer.is_closing():
            return False
        self._last_token = token = self._last_token + 1
        counted = self._ratings[token] = asyncio.get_running_loop().create_future()
        self.send(TakeFeedback(token, rating))
        try:
            return await asyncio.wait_for(counted, _FEEDBACK_SECONDS)
        except TimeoutError:
            return False
        finally:
            self._ratings.pop(token, None)

    async def _start(self, start: Start) -> None:
        set_up_logging(start.settings.log_format)
        set_log_level(start.log_level)
        store, events = _redis(start)
        try:
            plane = DataPlane(start.settings, start.rules, start.number, start.health, store, events, start.captures)
            plane.set_health(start.health, start.models)
            plane.set_drained(start.drained)
            plane.set_weights(start.weights, start.runs)
            if start.watch is not None:
                self._watch(plane, start.watch)
            plane.feedback.by_control = self._pass_rating
            tls = listener_tls(start.settings.tls) if start.settings.tls else None
            loop = asyncio.get_running_loop()
            servers = [
                await loop.create_server(lambda: ProtocolDetector(plane), sock=listener, ssl=tls, backlog=_BACKLOG)
                for listener in listeners(start)
            ]
        except (OSError, ValueError) as error:
            self.send(WorkerFailed(f"cannot serve: {error}"))
            return
        if store is not None and events is not None:
            await store.open()
            events.start()
        self._plane, self._servers = plane, servers
        # What is loaded by now stays loaded: exempt it from every later collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, 20, 50)
        self.send(Serving(os.getpid()))

    def _watch(self, plane: DataPlane, watch: Watch) -> None:
        def report(decisions: list[dict[str, Any]], skipped: int) -> None:
            self.send(Decisions(decisions, skipped))

        sampler = None
        if watch.rate > 0:
            sampler = DecisionSampler(watch.rate, watch.share, watch.with_body_facts, watch.redacted, report)
        plane.request_log.sample(sampler)

    def _use_rules(self, plane: DataPlane, message: UseRules) -> None:
        try:
            plane.use_rules(message.rules, message.number)
        except (OSError, ValueError) as error:  # a certificate file that can no longer be read
            _log.error("rules %d are not used: %s", message.number, error)
            self.send(WorkerFailed(f"rules {message.number} are not used: {error}"))


def _count_rating(plane: DataPlane, rating: Rating) -> bool:
    try:
        return plane.feedback.take(rating)
    except ValueError:  # too many names
        return False


def _redis(start: Start) -> tuple[Store | None, EventBus | None]:
    """The worker's Redis; its outages are logged by the control process, which uses the same one."""
    if start.redis is None:
        return None, None
    store = Store(start.redis, deadline=start.settings.redis_deadline, is_quiet=True)
    return store, EventBus(store, is_quiet=True)


def retain_buffers() -> None:
    """Have the allocator keep the memory of large reads for the next ones.

    glibc returns blocks of this size to the system at once, and every read of a large tensor then pays for freshly
    zeroed pages: half of the cost of relaying it. Other allocators have no mallopt, and do not need it.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _BUFFER_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _BUFFER_BYTES)


def listeners(start: Start) -> list[socket.socket]:
    """The listening sockets: inherited, or bound to the settings' ports.

    Raises: OSError.
    """
    if start.listener_fds:
        return [socket.socket(fileno=fd) for fd in start.listener_fds]
    return [bind(start.settings, port) for port in dict.fromkeys((start.settings.http_port, start.settings.grpc_port))]


def bind(settings: Settings, port: int) -> socket.socket:
    """A listening socket that shares its port with those of the other workers."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((settings.host, port))
    return listener


def listener_tls(spec: ListenerTls) -> ssl.SSLContext:
    """The TLS of client connections.

    Raises: OSError or ssl.SSLError where a file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(spec.cert, spec.key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if spec.client_ca:
        context.load_verify_locations(spec.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def main() -> int:
    retain_buffers()
    return run_child(Worker, "A data-plane process of Pointsman")
