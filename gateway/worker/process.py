"""A worker: the data plane and its listeners, controlled over a socket pair.

Without its control process a worker continues to serve by the last rules and the last health until it gets a signal, or
a later gateway on the same ports takes over.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import secrets
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control import messages
from gateway.control.child import MAX_UNSENT_BYTES, ControlledProcess, control_socket, run_child
from gateway.control.handover import HandoverPoint
from gateway.dataplane.context.active_requests import cancel_requests, list_requests
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.readiness import is_ready
from gateway.dataplane.context.request_log import DecisionSampler
from gateway.dataplane.context.worker_counters import counters_in_parts
from gateway.dataplane.listener import ProtocolDetector
from gateway.events.event_bus import EventBus
from gateway.limits.budget_window import SpendingByBudget
from gateway.net.collector import collector_paused, relax_collector
from gateway.net.listener_tls import listener_tls
from gateway.net.slices import Slices
from gateway.observability.audit_record import AuditRecord
from gateway.observability.logs import set_up_logging
from gateway.protocol.feedback import Rating
from gateway.redis.bounded_client import BoundedRedis
from gateway.upstream.tracked_prefix_index import SeenPrompt
from gateway.worker.stall_watch import StallWatch

_log = logging.getLogger("gateway.worker")

_BACKLOG = 4096
# A third of it is how long a worker stands before it reports its request, where nobody ends it for that.
_HANG_SECONDS = 30.0
# Longer than the half second for which the control process waits for other workers.
_FEEDBACK_SECONDS = 1.0
# Longer than the five seconds for which it waits for workers that are busy.
_MEMORY_SECONDS = 10.0
# Longer than the two seconds for which it waits for lists of models.
_MODELS_SECONDS = 3.0

# <malloc.h>: the size from which a block is mapped on its own, and how much free memory is kept at the top.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BUFFER_BYTES = 16 * 1024 * 1024


class Worker(ControlledProcess):
    """Serves connections as the control process directs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._servers: list[asyncio.Server] = []
        self._ratings: dict[int, asyncio.Future[bool]] = {}  # passed to other workers, by token
        self._last_token = 0
        self._id = secrets.token_hex(8)
        self._stall_watch: StallWatch | None = None
        self._handover: HandoverPoint | None = None
        self._is_alone = False  # without its control process

    async def use_rules(self, plane: DataPlane, rules: RulesSpec, number: int) -> None:
        await load_hooks(rules)
        with collector_paused():
            await super().use_rules(plane, rules, number)

    async def start(self, start: messages.Start) -> None:
        set_up_logging(start.settings.log_format)
        store, events = _redis(start)
        await load_hooks(start.rules)
        plane = DataPlane(start.settings, start.rules, start.number, {}, store, events, start.captures)
        for setting in start.state:
            self.apply(plane, setting)
        plane.feedback.by_control = self._pass_rating
        plane.on_audited = self._pass_audit
        plane.budgets.report = self._report_spending
        if plane.spans is not None:
            plane.spans.send = self.send_spans
        plane.endpoint_waits.report = self._report_wanted
        plane.on_prompts = self._report_prompts
        plane.by_control_memory = self._share_memory
        plane.by_control_models = self._look_at_models
        plane.held.on_fall = return_memory
        tls = listener_tls(start.settings.tls) if start.settings.tls else None
        loop = asyncio.get_running_loop()
        self._servers = [
            await loop.create_server(lambda: ProtocolDetector(plane), sock=listener, ssl=tls, backlog=_BACKLOG)
            for listener in listeners(start)
        ]
        if start.handover:
            self._handover = HandoverPoint(
                [each.fileno() for server in self._servers for each in server.sockets],
                lambda: 0 if self._is_alone else start.control_pid,
                self.stopping.set,
            )
            self._handover.open(Path(start.handover))
        if store is not None and events is not None:
            await store.open()
            events.start()
        self.plane = plane
        self._stall_watch = StallWatch(plane, (start.settings.hang_timeout or _HANG_SECONDS) / 3)
        self._stall_watch.start()
        # What is loaded by now stays loaded: exempt it from every later collection.
        gc.collect()
        gc.freeze()
        relax_collector()
        gc.enable()

    def control_lost(self) -> None:
        self._is_alone = True
        if self.plane is None:
            self.stopping.set()
        elif not self.stopping.is_set():
            self.plane.listen_alone()
            number = self.plane.snapshot.number
            _log.error("the control process is gone; worker %d serves on with rules %d", os.getpid(), number)

    async def reply(self, plane: DataPlane, token: int, request: Any) -> None:
        if not isinstance(request, messages.GetCounters):
            await super().reply(plane, token, request)
            return
        slices = Slices()
        for _ in self._send_counters(plane, token):
            if slices.is_over:
                await slices.next()

    def _send_counters(self, plane: DataPlane, token: int) -> Iterator[None]:
        """Send the counters part by part."""
        plane.budgets.flush()
        parts = counters_in_parts(plane)
        part = next(parts)
        for following in parts:
            self.send(messages.CountersPart(part))
            yield
            part = following
        self.send(messages.QueryReply(token, part))

    def answer(self, plane: DataPlane, request: Any) -> Any:
        match request:
            case messages.ListRequests(limit):
                return list_requests(plane.connections, os.getpid(), monotonic(), limit)
            case messages.ShareMemory():
                return True  # the secret has come before
            case messages.GetReadiness():
                return is_ready(plane)
            case messages.CancelRequest(id):
                return cancel_requests(plane.connections, os.getpid(), id)
            case Rating():
                with suppress(ValueError):  # too many names
                    return plane.feedback.take(request)
        return False

    def apply(self, plane: DataPlane, message: messages.Message) -> None:
        match message:
            case messages.Watch(rate):
                sampler = None
                if rate > 0:
                    sampler = DecisionSampler(
                        rate, message.share, message.with_body_facts, message.redacted, self._report
                    )
                plane.request_log.sample(sampler)
            case messages.SetUnready():
                plane.is_unready = True
            case messages.SetSpending(budgets, confirmed):
                plane.budgets.set_spending(budgets, confirmed.get(self._id, -1))
            case messages.QueryReply(token, is_counted):
                counted = self._ratings.pop(token, None)
                if counted is not None and not counted.done():
                    counted.set_result(is_counted)
            case _:
                super().apply(plane, message)

    def _report(self, decisions: list[dict[str, Any]], skipped: int) -> None:
        self.send(messages.Decisions(decisions, skipped))

    def _report_spending(self, batch: int, budgets: SpendingByBudget) -> None:
        self.send(messages.Spent(self._id, batch, budgets))

    def _report_wanted(self, engine: str) -> None:
        self.send(messages.EngineWanted(engine))

    def _report_prompts(self, engine: str, prompts: Sequence[SeenPrompt]) -> None:
        """Those that the control process does not read in time are reported when they are seen again."""
        transport = self.writer.transport
        if not transport.is_closing() and transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
            self.send(messages.PromptsSeen(engine, prompts))

    def _pass_audit(self, record: AuditRecord) -> None:
        """Send a record to the control process, which has the audit; log it where that is gone or does not read."""
        transport = self.writer.transport
        if not transport.is_closing() and transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
            self.send(messages.Audited(record))
        else:
            what = f"{record.method} {record.target} by {record.principal or 'a client'} from {record.peer}"
            _log.error("an operation is not in the audit: %s: status %d", what, record.status)

    async def close(self) -> None:
        """Stop accepting; let what is in flight end, within the limit."""
        plane = self.plane
        if plane is None:
            return
        if self._handover is not None:
            self._handover.close()
        for server in self._servers:
            server.close()
        if self._stall_watch is not None:
            self._stall_watch.stop()
        plane.drain()
        deadline = asyncio.get_running_loop().time() + plane.settings.drain_timeout
        while plane.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        if plane.connections:
            _log.warning("%d requests did not end within %g s", len(plane.connections), plane.settings.drain_timeout)
        plane.close()
        if plane.event_bus is not None:
            await plane.event_bus.close()
        for used in (plane.arm_store, plane.store):
            if used is not None:
                await used.close()
        for _ in self._send_counters(plane, 0):
            pass
        with suppress(OSError, TimeoutError):  # the control process may be gone
            await asyncio.wait_for(self.writer.drain(), 1.0)

    async def _pass_rating(self, rating: Rating) -> bool:
        """Whether another worker of this gateway has counted a rating."""
        return await self._query_control(rating, _FEEDBACK_SECONDS)

    async def _share_memory(self) -> bool:
        """Whether the workers of this gateway rename regions."""
        return await self._query_control(messages.ShareMemory(), _MEMORY_SECONDS)

    async def _look_at_models(self, keys: Collection[tuple[str, str]]) -> bool:
        """Whether the workers of this gateway have been sent the lists of these endpoints."""
        return await self._query_control(messages.LookAtModels(frozenset(keys)), _MODELS_SECONDS)

    async def _query_control(
        self, request: Rating | messages.ShareMemory | messages.LookAtModels, seconds: float
    ) -> bool:
        """The control process' reply; False where none comes in time."""
        if self.writer.is_closing():
            return False
        self._last_token = token = self._last_token + 1
        counted = self._ratings[token] = asyncio.get_running_loop().create_future()
        self.send(messages.Query(token, request))
        try:
            return await asyncio.wait_for(counted, seconds)
        except TimeoutError:
            return False
        finally:
            self._ratings.pop(token, None)


async def load_hooks(rules: RulesSpec) -> None:
    """Load the rules' hooks in a thread, since their modules may take seconds. The control process has done the same,
    and refused rules whose hooks fail; where one fails here, requests of its route are refused."""
    specs = [spec for route in rules.routes for spec in route.hooks]
    if not specs:
        return
    from gateway.hooks.loader import HookLoadError, load_hook

    for spec in specs:
        try:
            await asyncio.to_thread(load_hook, spec)
        except HookLoadError as error:
            _log.error("hook '%s' cannot be loaded: %s", spec.use, error)


def _redis(start: messages.Start) -> tuple[BoundedRedis | None, EventBus | None]:
    """The worker's Redis; its outages are logged by the control process, which uses the same one."""
    if start.redis is None:
        return None, None
    store = BoundedRedis(start.redis, deadline=start.settings.redis_deadline, is_quiet=True)
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


def return_memory() -> None:
    """Have the allocator give back what is free, in a thread: that takes long, and needs no interpreter lock."""
    with suppress(OSError, AttributeError):
        asyncio.get_running_loop().run_in_executor(None, ctypes.CDLL(None).malloc_trim, 0)


def listeners(start: messages.Start) -> list[socket.socket]:
    """The listening sockets: inherited, or bound to the settings' ports.

    Raises: OSError.
    """
    if start.listener_fds:
        return [socket.socket(fileno=fd) for fd in start.listener_fds]
    return [bind(start.settings, port) for port in dict.fromkeys((start.settings.http_port, start.settings.grpc_port))]


def bind(settings: Settings, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((settings.host, port))
    return listener


def main(control: socket.socket | None = None) -> int:
    """`control` is handed to a forked worker; one that is started has it as an option."""
    gc.disable()  # until it serves
    retain_buffers()
    return run_child(Worker, control or control_socket("A data-plane process of Pointsman"))
