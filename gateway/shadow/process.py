"""The shadow process: controlled as a worker is, fed with captures by the workers.

It ends with its control process, the only reader of its reports.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from dataclasses import replace
from typing import cast

from gateway.config.specs import RulesSpec
from gateway.control.channel import ControlledProcess, run_child
from gateway.control.messages import (
    Counters,
    Drain,
    ForgetReport,
    GetCounters,
    GetReports,
    Message,
    Reports,
    Serving,
    SetDrained,
    SetHealth,
    Start,
    UseReports,
    UseRules,
    WorkerFailed,
)
from gateway.dataplane.context.capture import CaptureReader
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.worker_counters import counters_of
from gateway.observability.logs import set_up_logging
from gateway.observability.metrics import SHADOW_ARM, CountersSnapshot
from gateway.shadow.comparator import ShadowComparator, shadow_rules
from gateway.shadow.comparison.report import RouteReport

_log = logging.getLogger(__name__)

# Workers take precedence where processors are few.
_NICENESS = 5


class ShadowProcess(ControlledProcess):
    """Compares captured requests as the control process directs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._plane: DataPlane | None = None
        self._comparator: ShadowComparator | None = None
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<ShadowProcess {self._comparator!r}>"

    async def close(self) -> None:
        for part in (self._server, self._comparator, self._plane):
            if part is not None:
                part.close()

    async def handle(self, message: Message) -> None:
        if isinstance(message, Start):
            await self._start(message)
            return
        plane, comparator = self._plane, self._comparator
        if isinstance(message, Drain):
            self.stopping.set()
        elif plane is None or comparator is None:
            self.send(WorkerFailed(f"{type(message).__name__} came before Start"))
        elif isinstance(message, UseRules):
            self._use_rules(plane, comparator, message.rules, message.number)
        elif isinstance(message, SetHealth):
            plane.set_health(message.health, message.models, message.loads)
        elif isinstance(message, SetDrained):
            plane.set_drained(message.endpoints)
        elif isinstance(message, GetCounters):
            self.send(Counters(message.token, _counters(plane)))
        elif isinstance(message, GetReports):
            self.send(Reports(message.token, comparator.reports))
        elif isinstance(message, UseReports):
            reports = {name: each for name, each in message.reports.items() if isinstance(each, RouteReport)}
            comparator.reports |= reports
        elif isinstance(message, ForgetReport):
            comparator.forget(message.route)

    async def _start(self, start: Start) -> None:
        # Workers have removed what clients may not claim about themselves, so forwarded fields can be trusted here.
        settings = replace(start.settings, access_log=False, tls=None, trust_forwarded=True)
        set_up_logging(settings.log_format)
        rules, places = shadow_rules(start.rules)
        try:
            plane = DataPlane(settings, rules, start.number, start.health)
            plane.set_health(start.health, start.models)
            plane.set_drained(start.drained)
            comparator = ShadowComparator(plane, start.rules, places)
            loop = asyncio.get_running_loop()
            for listener in start.listener_fds:
                captures = socket.socket(fileno=listener)
                self._server = await loop.create_unix_server(lambda: _CaptureConnection(comparator), sock=captures)
        except (OSError, ValueError) as error:
            self.send(WorkerFailed(f"cannot compare: {error}"))
            return
        self._plane, self._comparator = plane, comparator
        self.send(Serving(os.getpid()))

    def _use_rules(self, plane: DataPlane, comparator: ShadowComparator, rules: RulesSpec, number: int) -> None:
        derived, places = shadow_rules(rules)
        try:
            plane.use_rules(derived, number)
        except (OSError, ValueError) as error:
            _log.error("rules %d are not used for shadows: %s", number, error)
            return
        comparator.use(rules, places)


class _CaptureConnection(asyncio.Protocol):
    """A worker's connection."""

    def __init__(self, comparator: ShadowComparator) -> None:
        self._comparator = comparator
        self._reader = CaptureReader()
        self._transport = cast(asyncio.Transport, None)  # set by connection_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for capture in self._reader.feed(data):
            self._comparator.take(capture, self._done)

    def _done(self, route: str) -> None:
        """The worker may send another capture of this route."""
        if not self._transport.is_closing():
            self._transport.write(route.encode() + b"\n")


def _counters(plane: DataPlane) -> CountersSnapshot:
    """Requests to candidates, as an arm of its own."""
    counters = counters_of(plane)
    series = [replace(each, key=replace(each.key, arm=SHADOW_ARM)) for each in counters.series if each.key.route]
    return CountersSnapshot(series=series, rules_number=counters.rules_number, breakers_open=counters.breakers_open)


def main() -> int:
    with suppress(OSError):
        os.nice(_NICENESS)
    return run_child(ShadowProcess, "Compares replies of engines")
