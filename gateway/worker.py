"""One data-plane process: `python -m gateway.worker --control-fd N`, started by the supervisor.

It hears from its supervisor over a socket pair. When the supervisor is gone it serves on with the rules and the health
that it knows, until somebody signals it.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from gateway.config.settings import ListenerTls, Settings
from gateway.control_messages import (
    ActiveRequests,
    AskRequests,
    AskSnapshot,
    Cancelled,
    CancelRequest,
    Counters,
    Decisions,
    Decoder,
    Drain,
    FeedbackCounted,
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
    encode,
    loop_factory,
)
from gateway.dataplane.context.active_requests import cancel_requests, list_requests
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.decision_log import DecisionSampler
from gateway.dataplane.listener import ProtocolDetector
from gateway.events.event_bus import EventBus
from gateway.observability.logs import set_log_level, set_up_logging
from gateway.protocol.feedback import Rating
from gateway.redis.bounded_client import Store

_log = logging.getLogger("gateway.worker")

_BACKLOG = 4096
# The control process waits for a busy worker for half a second.
_ANSWER_SECONDS = 1.0
# Nothing on the hot path makes cycles, so collections find little: the default of 700 would have them cost more than
# all of the routing.
_GC_THRESHOLD = 20_000

# <malloc.h>: what is the size from which a block is mapped on its own, and how much free memory is kept at the top.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 16 * 1024 * 1024


class Worker:
    """Serves connections, and does what the control process says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._plane: DataPlane | None = None
        self._servers: list[asyncio.Server] = []
        self._stopping = asyncio.Event()
        self._asked: dict[int, asyncio.Future[bool]] = {}  # by the control process, of others
        self._num_asked = 0

    async def run(self) -> int:
        """Serve until told to stop; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        listening = loop.create_task(self._listen_to_supervisor())
        await self._stopping.wait()
        listening.cancel()
        if self._plane is not None:
            await self._drain(self._plane)
        return 0

    async def _listen_to_supervisor(self) -> None:
        decoder = Decoder()
        while data := await self._reader.read(1 << 16):
            for message in decoder.feed(data):
                await self._obey(message)
        if self._plane is None:
            self._stopping.set()
        elif not self._stopping.is_set():
            self._plane.listen_alone()
            _log.error(
                "the control process is gone; worker %d serves on with rules %d", os.getpid(), self._rules_number
            )

    @property
    def _rules_number(self) -> int:
        return self._plane.snapshot.number if self._plane else 0

    async def _obey(self, message: Message) -> None:
        if isinstance(message, Start):
            await self._start(message)
        elif self._plane is None:
            self._say(WorkerFailed(f"{type(message).__name__} came before Start"))
        elif isinstance(message, UseRules):
            self._use_rules(self._plane, message)
        elif isinstance(message, SetHealth):
            self._plane.set_health(message.health, message.models, message.loads)
        elif isinstance(message, SetDrained):
            self._plane.set_drained(message.endpoints)
        elif isinstance(message, SetLogLevel):
            set_log_level(message.level)
        elif isinstance(message, AskRequests):
            found = list_requests(self._plane.connections, os.getpid(), monotonic(), message.limit)
            self._say(ActiveRequests(message.token, found))
        elif isinstance(message, CancelRequest):
            self._say(Cancelled(message.token, cancel_requests(self._plane.connections, os.getpid(), message.id)))
        elif isinstance(message, SetWeights):
            self._plane.set_weights(message.weights, message.runs)
        elif isinstance(message, TakeFeedback):
            self._say(FeedbackCounted(message.token, self._takes(self._plane, message.rating)))
        elif isinstance(message, FeedbackCounted):
            asked = self._asked.pop(message.token, None)
            if asked is not None and not asked.done():
                asked.set_result(message.is_counted)
        elif isinstance(message, Watch):
            self._watch(self._plane, message)
        elif isinstance(message, AskSnapshot):
            self._say(Counters(message.token, self._plane.counters()))
        elif isinstance(message, Drain):
            self._stopping.set()

    @staticmethod
    def _takes(plane: DataPlane, rating: Rating) -> bool:
        try:
            return plane.feedback.take(rating)
        except ValueError:  # one name too many
            return False

    async def _ask_others(self, rating: Rating) -> bool:
        """Whether another worker of this gateway has taken a rating."""
        if self._writer.is_closing():
            return False
        self._num_asked += 1
        token = self._num_asked
        answer = self._asked[token] = asyncio.get_running_loop().create_future()
        self._say(TakeFeedback(token, rating))
        try:
            return await asyncio.wait_for(answer, _ANSWER_SECONDS)
        except TimeoutError:
            return False
        finally:
            self._asked.pop(token, None)

    async def _start(self, start: Start) -> None:
        set_up_logging(start.settings.log_format)
        set_log_level(start.log_level)
        store, news = _redis(start)
        try:
            plane = DataPlane(start.settings, start.rules, start.number, start.health, store, news, start.captures)
            plane.set_health(start.health, start.models)
            plane.set_drained(start.drained)
            plane.set_weights(start.weights, start.runs)
            if start.watch is not None:
                self._watch(plane, start.watch)
            plane.feedback.by_control = self._ask_others
            tls = listener_tls(start.settings.tls) if start.settings.tls else None
            loop = asyncio.get_running_loop()
            servers = [
                await loop.create_server(lambda: ProtocolDetector(plane), sock=listener, ssl=tls, backlog=_BACKLOG)
                for listener in listeners(start)
            ]
        except (OSError, ValueError) as error:
            self._say(WorkerFailed(f"cannot serve: {error}"))
            return
        if store is not None and news is not None:
            await store.open()
            news.start()
        self._plane, self._servers = plane, servers
        # What is loaded by now stays: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, 20, 50)
        self._say(Serving(os.getpid()))

    def _watch(self, plane: DataPlane, watch: Watch) -> None:
        def tell(decisions: list[dict[str, Any]], skipped: int) -> None:
            self._say(Decisions(decisions, skipped))

        is_on = watch.rate > 0
        sampler = (
            DecisionSampler(watch.rate, watch.share, watch.with_body_facts, watch.redacted, tell) if is_on else None
        )
        plane.watch(sampler)

    def _use_rules(self, plane: DataPlane, message: UseRules) -> None:
        try:
            plane.use_rules(message.rules, message.number)
        except (OSError, ValueError) as error:  # a certificate that cannot be read, on this machine, by now
            _log.error("rules %d are not used: %s", message.number, error)
            self._say(WorkerFailed(f"rules {message.number} are not used: {error}"))

    async def _drain(self, plane: DataPlane) -> None:
        """Stop accepting; let what is in flight end, within the limit."""
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
        self._say(Counters(0, plane.counters()))
        with suppress(OSError, TimeoutError):  # the control process is gone: nobody counts any more
            await asyncio.wait_for(self._writer.drain(), 1.0)

    def _say(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(message))


def _redis(start: Start) -> tuple[Store | None, EventBus | None]:
    """The control process, which uses the same Redis, tells the log of its outages."""
    if start.redis is None:
        return None, None
    store = Store(start.redis, deadline=start.settings.redis_deadline, is_quiet=True)
    return store, EventBus(store, is_quiet=True)


def keep_buffers() -> None:
    """Have the allocator keep the memory of large reads for the next ones.

    glibc hands blocks of this size back to the system at once, and every read of a large tensor then pays for fresh
    zeroed pages: half of the cost of relaying it. Other allocators have no mallopt, and do not need it.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


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
    """What clients' connections are encrypted with.

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


async def serve(control: socket.socket) -> int:
    """Be a worker on one end of a socket pair."""
    reader, writer = await asyncio.open_connection(sock=control)
    return await Worker(reader, writer).run()


def main() -> int:
    parser = argparse.ArgumentParser(description="A data-plane process of pointsman; `pointsman serve` starts it.")
    parser.add_argument("--control-fd", type=int, required=True)
    arguments = parser.parse_args()
    keep_buffers()
    control = socket.socket(fileno=arguments.control_fd)
    control.setblocking(False)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve(control))


if __name__ == "__main__":
    sys.exit(main())
