"""The shadow process from the control process' side: started where a route has a shadow, restarted when it dies.

Its reports are stored here, so that they outlive it; a reader gets the latest that it delivers in time.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control.channel import ChildProcess
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
from gateway.net.backoff import Backoff
from gateway.observability.stats import ShadowCounts
from gateway.redis.bounded_client import end
from gateway.shadow.comparison.report import RouteReport
from gateway.supervision.worker_counters import Tally
from gateway.upstream.health import Findings

_log = logging.getLogger("pointsman")

COMMAND = (sys.executable, "-m", "gateway.shadow")
CAPTURED = "captured"

_START_SECONDS = 30.0
_PAUSE_SECONDS = 0.1, 5.0  # the first, the longest
# A process that has served this long was well: the next restart is immediate again.
_WELL_AFTER_SECONDS = 30.0
_ANSWER_SECONDS = 0.5
_STOP_SECONDS = 2.0
# Reports of routes that are no longer mirrored stay readable, up to this number.
_MAX_REPORTS = 100

Json = dict[str, Any]


class ShadowSupervisor:
    """Owns the process, its socket and its reports. `tally` is the workers': it counts requests to candidates, and what
    workers have captured."""

    def __init__(self, settings: Settings, tally: Tally, command: Sequence[str] = COMMAND) -> None:
        self._settings = settings
        self._tally = tally
        self._command = command
        self._folder = Path(tempfile.gettempdir()) / f"pointsman-{token_hex(8)}"  # made when it is first needed
        self._rules: tuple[RulesSpec, int] | None = None
        self._findings = Findings()
        self._drained: frozenset[tuple[str, str]] = frozenset()
        self._process: ChildProcess | None = None
        self._running: asyncio.Task[None] | None = None
        self._serving: asyncio.Future[None] | None = None
        self._listener: socket.socket | None = None
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._token = 0
        self._reports: dict[str, RouteReport] = {}
        self._reset_counts: Counter[tuple[str, str]] = Counter()  # captures counted before a report was reset
        self.restarts = 0

    def __repr__(self) -> str:
        return f"<ShadowSupervisor: {self._process or 'no process'}, {len(self._reports)} reports>"

    @property
    def socket_path(self) -> str:
        """Where workers send captures."""
        return str(self._folder / "captures")

    # Settings of the process

    def use_rules(self, rules: RulesSpec, number: int) -> None:
        """Mirror by these rules from now on."""
        self._rules = (rules, number)
        if self._process is not None:
            self._process.send(UseRules(rules, number))
        elif self._mirrored() and self._running is None:
            if find_spec("numpy") is None:
                _log.error('nothing is mirrored: numpy is not installed; pip install "pointsman[shadow]"')
                return
            loop = asyncio.get_running_loop()
            self._serving = loop.create_future()
            self._listener = self._listen()
            self._running = loop.create_task(self._run())

    def _listen(self) -> socket.socket | None:
        """The socket for captures; it belongs to this process, so that it outlives the child and its successors inherit
        it."""
        try:
            self._folder.mkdir(mode=0o700)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(self.socket_path)
            listener.listen()
        except OSError as error:
            _log.error("nothing can be mirrored: %s cannot be made: %s", self.socket_path, error)
            return None
        return listener

    async def ready(self) -> None:
        """Wait until the process serves, where it is needed, up to a limit: workers do without it."""
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=_START_SECONDS)

    def set_health(self, findings: Findings) -> None:
        self._findings = findings
        if self._process is not None:
            self._process.send(SetHealth(findings.conditions, findings.models, findings.loads))

    def set_drained(self, endpoints: frozenset[tuple[str, str]]) -> None:
        if endpoints != self._drained:
            self._drained = endpoints
            if self._process is not None:
                self._process.send(SetDrained(endpoints))

    async def count(self) -> None:
        """Bring reports and counts up to date, as far as the process answers in time."""
        process = self._process
        if process is None:
            return
        self._token += 1
        answer = self._answers[self._token] = asyncio.get_running_loop().create_future()
        process.send(GetCounters(0))
        process.send(GetReports(self._token))
        await asyncio.wait([answer], timeout=_ANSWER_SECONDS)
        self._answers.pop(self._token, None)

    async def close(self) -> None:
        """Stop the process and drop the comparisons under way."""
        if self._running is not None:
            await end(self._running)
        process = self._process
        if process is not None and process.ended is not None:
            process.send(Drain())
            await asyncio.wait([process.ended], timeout=_STOP_SECONDS)
            process.kill()
        if self._listener is not None:
            self._listener.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # Reports

    def reports(self) -> list[Json]:
        """All reports, those of mirrored routes first."""
        shadows = self._mirrored()
        names = [*shadows, *(name for name in self._reports if name not in shadows)]
        return [report for name in names if (report := self.report(name)) is not None]

    def report(self, route: str) -> Json | None:
        """A route's report; None where it has neither a report nor a shadow."""
        shadow = self._mirrored().get(route)
        report = self._reports.get(route)
        if report is None or (shadow is not None and not report.is_of(shadow)):
            if shadow is None:
                return None
            report = RouteReport(route, shadow, 0.0)
        captured = self._captured()
        dropped = Counter(report.dropped)
        for (name, reason), number in captured.items():
            if name == route and reason != CAPTURED:
                dropped[reason] += number
        return report.to_json() | {
            "active": shadow is not None,
            "captured": captured[route, CAPTURED],
            "dropped": dict(dropped),
            "since": report.since or None,
        }

    def forget(self, route: str) -> bool:
        """Reset a route's report; False where there is none."""
        exists = self.report(route) is not None
        self._reports.pop(route, None)
        if self._process is not None:
            self._process.send(ForgetReport(route))
        counted = self._tally.captures()
        self._reset_counts.update({key: counted[key] - self._reset_counts[key] for key in counted if key[0] == route})
        return exists

    def counts(self) -> dict[str, ShadowCounts]:
        """By route, for metrics."""
        captured = self._tally.captures()
        counts: dict[str, ShadowCounts] = {}
        for name in {*self._reports, *(route for route, _ in captured)}:
            report = self._reports.get(name)
            dropped = Counter(report.dropped) if report is not None else Counter()
            for (route, reason), number in captured.items():
                if route == name and reason != CAPTURED:
                    dropped[reason] += number
            outcomes = dict(report.outcomes) if report is not None else {}
            mirrored = report.mirrored if report is not None else 0
            counts[name] = ShadowCounts(captured[name, CAPTURED], mirrored, outcomes, dropped)
        return counts

    def _captured(self) -> Counter[tuple[str, str]]:
        """What workers have captured since each report was reset."""
        counted = self._tally.captures()
        counted.subtract(self._reset_counts)
        return counted

    def _mirrored(self) -> Mapping[str, Any]:
        if self._rules is None:
            return {}
        return {route.name: route.shadow for route in self._rules[0].routes if route.shadow is not None}

    # The process

    async def _run(self) -> None:
        """Start it, and restart it whenever it dies."""
        backoff = Backoff(*_PAUSE_SECONDS, healthy_after=_WELL_AFTER_SECONDS)
        loop = asyncio.get_running_loop()
        while True:
            since = loop.time()
            try:
                status = await self._run_once()
            except OSError as error:
                pause = backoff.failed()
                _log.error("cannot start the shadow process: %s; trying again in %g s", error, pause)
            else:
                pause = backoff.failed(loop.time() - since)
                _log.error("the shadow process ended with status %d; starting another in %g s", status, pause)
            self.restarts += 1
            await asyncio.sleep(pause)

    async def _run_once(self) -> int:
        """Start it, and return its exit status once it has ended."""
        assert self._rules is not None
        process = ChildProcess(self._received, self._command)
        inherited = () if self._listener is None else (self._listener.fileno(),)
        await process.start(inherited)
        assert process.ended is not None
        rules, number = self._rules
        findings = self._findings
        start = Start(replace(self._settings, workers=1), rules, number, findings.conditions, findings.models)
        process.send(replace(start, drained=self._drained, listener_fds=inherited))
        process.send(UseReports(self._reports))
        self._process = process
        try:
            return await asyncio.shield(process.ended)
        finally:
            if process.ended.done():
                self._process = None
                self._tally.retire(process)

    def _received(self, process: ChildProcess, message: Message) -> None:
        if isinstance(message, Counters):
            self._tally.take(process, message.snapshot)
        elif isinstance(message, Reports):
            self._take(message.reports)
            answer = self._answers.get(message.token)
            if answer is not None and not answer.done():
                answer.set_result(None)
        elif isinstance(message, Serving) and self._serving is not None and not self._serving.done():
            self._serving.set_result(None)
        elif isinstance(message, WorkerFailed):
            _log.error("the shadow process: %s", message.message)

    def _take(self, reports: Mapping[str, RouteReport]) -> None:
        self._reports |= reports
        for name in [name for name in self._reports if name not in self._mirrored()][:-_MAX_REPORTS]:
            del self._reports[name]
