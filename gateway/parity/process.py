"""The process itself: it hears from the control process as a worker does, and takes captures from the workers.

When the control process is gone nobody reads its reports any more, and it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from contextlib import suppress
from dataclasses import replace
from typing import cast

from gateway.comparison.report import RouteReport
from gateway.config.specs import RulesSpec
from gateway.control_messages import (
    AskReports,
    AskSnapshot,
    Counters,
    Decoder,
    Drain,
    ForgetReport,
    Message,
    Reports,
    Serving,
    SetDrained,
    SetHealth,
    Start,
    UseReports,
    UseRules,
    WorkerFailed,
    encode,
    loop_factory,
)
from gateway.dataplane.context.capture import CaptureReader
from gateway.dataplane.context.data_plane import DataPlane
from gateway.observability.logs import set_up_logging
from gateway.observability.metrics import SHADOW_ARM, CountersSnapshot
from gateway.parity.comparator import Comparing
from gateway.parity.shadow_rules import shadow_rules

_log = logging.getLogger(__name__)

# Workers come first where processors are few.
_NICENESS = 5


class ParityProcess:
    """Compares, and does what the control process says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._plane: DataPlane | None = None
        self._comparing: Comparing | None = None
        self._server: asyncio.Server | None = None
        self._stopping = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ParityProcess {self._comparing!r}>"

    async def run(self) -> int:
        """Compare until told to stop; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        listening = loop.create_task(self._listen())
        await self._stopping.wait()
        listening.cancel()
        if self._server is not None:
            self._server.close()
        if self._comparing is not None:
            self._comparing.close()
        if self._plane is not None:
            self._plane.close()
        return 0

    async def _listen(self) -> None:
        decoder = Decoder()
        with suppress(OSError):
            while data := await self._reader.read(1 << 16):
                for message in decoder.feed(data):
                    await self._obey(message)
        self._stopping.set()

    async def _obey(self, message: Message) -> None:
        if isinstance(message, Start):
            await self._start(message)
            return
        plane, comparing = self._plane, self._comparing
        if isinstance(message, Drain):
            self._stopping.set()
        elif plane is None or comparing is None:
            self._say(WorkerFailed(f"{type(message).__name__} came before Start"))
        elif isinstance(message, UseRules):
            self._use_rules(plane, comparing, message.rules, message.number)
        elif isinstance(message, SetHealth):
            plane.set_health(message.health, message.models, message.loads)
        elif isinstance(message, SetDrained):
            plane.set_drained(message.endpoints)
        elif isinstance(message, AskSnapshot):
            self._say(Counters(message.token, _counters(plane)))
        elif isinstance(message, AskReports):
            self._say(Reports(message.token, comparing.reports))
        elif isinstance(message, UseReports):
            comparing.reports |= {name: each for name, each in message.reports.items() if isinstance(each, RouteReport)}
        elif isinstance(message, ForgetReport):
            comparing.forget(message.route)

    async def _start(self, start: Start) -> None:
        # Workers have left out what clients may not say of themselves: all that is here is the gateway's word.
        settings = replace(start.settings, access_log=False, tls=None, trust_forwarded=True)
        set_up_logging(settings.log_format)
        rules, places = shadow_rules(start.rules)
        try:
            plane = DataPlane(settings, rules, start.number, start.health)
            plane.set_health(start.health, start.models)
            plane.set_drained(start.drained)
            comparing = Comparing(plane, start.rules, places)
            loop = asyncio.get_running_loop()
            for listener in start.listener_fds:
                captures = socket.socket(fileno=listener)
                self._server = await loop.create_unix_server(lambda: _Worker(comparing), sock=captures)
        except (OSError, ValueError) as error:
            self._say(WorkerFailed(f"cannot compare: {error}"))
            return
        self._plane, self._comparing = plane, comparing
        self._say(Serving(os.getpid()))

    def _use_rules(self, plane: DataPlane, comparing: Comparing, rules: RulesSpec, number: int) -> None:
        derived, places = shadow_rules(rules)
        try:
            plane.use_rules(derived, number)
        except (OSError, ValueError) as error:
            _log.error("rules %d are not used for shadows: %s", number, error)
            return
        comparing.use(rules, places)

    def _say(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(message))


class _Worker(asyncio.Protocol):
    """A worker's connection."""

    def __init__(self, comparing: Comparing) -> None:
        self._comparing = comparing
        self._reader = CaptureReader()
        self._transport = cast(asyncio.Transport, None)  # set before anything else happens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for capture in self._reader.feed(data):
            self._comparing.take(capture, self._done)

    def _done(self, route: str) -> None:
        """The worker may send another one of this route."""
        if not self._transport.is_closing():
            self._transport.write(route.encode() + b"\n")


def _counters(plane: DataPlane) -> CountersSnapshot:
    """What candidates were asked, as an arm of its own."""
    counted = plane.counters()
    series = [replace(each, key=replace(each.key, arm=SHADOW_ARM)) for each in counted.series if each.key.route]
    return CountersSnapshot(series=series, rules_number=counted.rules_number, breakers_open=counted.breakers_open)


async def serve(control: socket.socket) -> int:
    """Be the parity process on one end of a socket pair."""
    reader, writer = await asyncio.open_connection(sock=control)
    return await ParityProcess(reader, writer).run()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares engines' answers; `pointsman serve` starts it.")
    parser.add_argument("--control-fd", type=int, required=True)
    arguments = parser.parse_args()
    with suppress(OSError):
        os.nice(_NICENESS)
    control = socket.socket(fileno=arguments.control_fd)
    control.setblocking(False)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve(control))
