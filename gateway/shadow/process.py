"""The shadow process: controlled as a worker is, fed with captures by the workers.

It ends with its control process, the only reader of its reports.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from gateway.config.specs import RulesSpec
from gateway.config.tracing import Tracing
from gateway.control.child import ControlledProcess, control_socket, run_child
from gateway.control.messages import ForgetReport, GetCounters, Message, Start, UseReports
from gateway.dataplane.context.capture import CaptureReader
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.worker_counters import counters_of
from gateway.observability.logs import set_up_logging
from gateway.observability.metrics import SHADOW_ARM, CountersSnapshot
from gateway.shadow.comparator import ShadowComparator, shadow_rules

# Workers take precedence where processors are few.
_NICENESS = 5


class ShadowProcess(ControlledProcess):
    """Compares captured requests as the control process directs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._comparator: ShadowComparator
        self._server: asyncio.Server | None = None

    async def start(self, start: Start) -> None:
        # Workers have removed what clients may not claim about themselves, so forwarded fields can be trusted here.
        settings = replace(
            start.settings,
            access_log=False,
            access_log_file=None,
            tracing=_linked_alone(start.settings.tracing),
            tls=None,
            trust_forwarded=True,
        )
        set_up_logging(settings.log_format)
        rules, places = shadow_rules(start.rules)
        plane = DataPlane(settings, rules, start.number, {})
        if plane.spans is not None:
            plane.spans.send = self.send_spans
        self._comparator = comparator = ShadowComparator(plane, start.rules, places)
        for setting in start.state:
            self.apply(plane, setting)
        for listener in start.listener_fds:
            captures = socket.socket(fileno=listener)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: _CaptureConnection(comparator), sock=captures)
        self.plane = plane

    async def close(self) -> None:
        if self.plane is not None:
            for part in (self._server, self._comparator, self.plane):
                if part is not None:
                    part.close()

    async def use_rules(self, plane: DataPlane, rules: RulesSpec, number: int) -> None:
        derived, places = shadow_rules(rules)
        plane.use_rules(derived, number)  # at once, with the places: it serves no client
        self._comparator.use(rules, places)

    def answer(self, plane: DataPlane, request: Any) -> Any:
        return _counters(plane) if isinstance(request, GetCounters) else self._comparator.reports

    def apply(self, plane: DataPlane, message: Message) -> None:
        match message:
            case UseReports(reports):
                self._comparator.reports |= reports
            case ForgetReport(route):
                self._comparator.reports.pop(route, None)
            case _:
                super().apply(plane, message)


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


def _linked_alone(tracing: Tracing | None) -> Tracing | None:
    """Copies are traced where the request of the client is."""
    if tracing is None:
        return None
    return replace(tracing, share=0.0, follows_caller=False, slow=0.0, ends_decide=False)


def _counters(plane: DataPlane) -> CountersSnapshot:
    """Requests to candidates, as an arm of its own."""
    counters = counters_of(plane)
    series = {key._replace(arm=SHADOW_ARM): each for key, each in counters.series.items() if key.route}
    return CountersSnapshot(series=series, breakers_open=counters.breakers_open)


def main() -> int:
    with suppress(OSError):
        os.nice(_NICENESS)
    return run_child(ShadowProcess, control_socket("Compares replies of engines"))
