"""The parity process as the control process sees it: started where some route has a shadow, started anew when it dies.

Its reports are kept here, so that they outlive it; whoever reads them gets the freshest that it tells in time.
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
from pathlib import Path
from secrets import token_hex
from typing import Any

from gateway.comparison.report import RouteReport
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control_messages import (
    AskReports,
    AskSnapshot,
    Counters,
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
)
from gateway.observability.shadow_metrics import ShadowCounts
from gateway.redis.asyncio_util import end
from gateway.supervision.worker_counters import Tally
from gateway.supervision.worker_process import WorkerProcess
from gateway.upstream.health import Findings

_log = logging.getLogger("pointsman")

COMMAND = (sys.executable, "-m", "gateway.parity")
CAPTURED = "captured"

_START_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# One that has served this long was well: the next restart is at once again.
_WELL_AFTER_SECONDS = 30.0
_ANSWER_SECONDS = 0.5
_STOP_SECONDS = 2.0
# Of routes that are mirrored no more, reports stay to be read.
_MAX_REPORTS = 100

Json = dict[str, Any]


class Shadowing:
    """Owns the process, its socket and its reports. `tally` is that of the workers: it counts what candidates are
    asked, and what workers have captured."""

    def __init__(self, settings: Settings, tally: Tally, command: Sequence[str] = COMMAND) -> None:
        self._settings = settings
        self._tally = tally
        self._command = command
        self._folder = Path(tempfile.gettempdir()) / f"pointsman-{token_hex(8)}"  # made where it is needed first
        self._rules: tuple[RulesSpec, int] | None = None
        self._found = Findings()
        self._drained: frozenset[tuple[str, str]] = frozenset()
        self._process: WorkerProcess | None = None
        self._minding: asyncio.Task[None] | None = None
        self._serving: asyncio.Future[None] | None = None
        self._listener: socket.socket | None = None
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._token = 0
        self._reports: dict[str, RouteReport] = {}
        self._counted_before: Counter[tuple[str, str]] = Counter()  # what workers had captured when reports began anew
        self.restarts = 0

    def __repr__(self) -> str:
        return f"<Shadowing: {self._process or 'nobody'}, {len(self._reports)} reports>"

    @property
    def socket_path(self) -> str:
        """Where workers hand over what they have captured."""
        return str(self._folder / "captures")

    # What the control process tells it

    def use_rules(self, rules: RulesSpec, number: int) -> None:
        """By these rules from now on."""
        self._rules = (rules, number)
        if self._process is not None:
            self._process.say(UseRules(rules, number))
        elif self._mirrored() and self._minding is None:
            loop = asyncio.get_running_loop()
            self._serving = loop.create_future()
            self._listener = self._listen()
            self._minding = loop.create_task(self._mind())

    def _listen(self) -> socket.socket | None:
        """Where workers hand over captures; it is ours, so that it outlives the process, and waits for the next one."""
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
        """Wait until the process serves, where it is needed; not for ever: workers do without."""
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=_START_SECONDS)

    def set_health(self, found: Findings) -> None:
        self._found = found
        if self._process is not None:
            self._process.say(SetHealth(found.conditions, found.models, found.loads))

    def set_drained(self, endpoints: frozenset[tuple[str, str]]) -> None:
        if endpoints != self._drained:
            self._drained = endpoints
            if self._process is not None:
                self._process.say(SetDrained(endpoints))

    async def count(self) -> None:
        """Bring reports and counts up to date, as far as the process answers in time."""
        process = self._process
        if process is None:
            return
        self._token += 1
        answer = self._answers[self._token] = asyncio.get_running_loop().create_future()
        process.say(AskSnapshot(0))
        process.say(AskReports(self._token))
        await asyncio.wait([answer], timeout=_ANSWER_SECONDS)
        self._answers.pop(self._token, None)

    async def close(self) -> None:
        """Stop the process; nobody waits for what it compares."""
        if self._minding is not None:
            await end(self._minding)
        process = self._process
        if process is not None and process.ended is not None:
            process.say(Drain())
            await asyncio.wait([process.ended], timeout=_STOP_SECONDS)
            process.kill()
        if self._listener is not None:
            self._listener.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # What the admin API reads

    def reports(self) -> list[Json]:
        """All reports, those of routes that are mirrored now first."""
        shadows = self._mirrored()
        names = [*shadows, *(name for name in self._reports if name not in shadows)]
        return [told for name in names if (told := self.report(name)) is not None]

    def report(self, route: str) -> Json | None:
        """A route's report; None where it has none, and no shadow."""
        shadow = self._mirrored().get(route)
        report = self._reports.get(route)
        if report is None or (shadow is not None and not report.is_of(shadow)):
            if shadow is None:
                return None
            report = RouteReport(route, shadow, 0.0)
        told = report.told()
        captured = self._captured()
        dropped = Counter(report.dropped)
        for (name, reason), number in captured.items():
            if name == route and reason != CAPTURED:
                dropped[reason] += number
        return told | {
            "active": shadow is not None,
            "captured": captured[route, CAPTURED],
            "dropped": dict(dropped),
            "since": report.since or None,
        }

    def forget(self, route: str) -> bool:
        """Begin a route's report anew; False where there is none."""
        known = self.report(route) is not None
        self._reports.pop(route, None)
        if self._process is not None:
            self._process.say(ForgetReport(route))
        counted = self._tally.captures()
        self._counted_before.update(
            {key: counted[key] - self._counted_before[key] for key in counted if key[0] == route}
        )
        return known

    def counts(self) -> dict[str, ShadowCounts]:
        """By route, for metrics."""
        captured = self._tally.captures()
        found: dict[str, ShadowCounts] = {}
        for name in {*self._reports, *(route for route, _ in captured)}:
            report = self._reports.get(name)
            dropped = Counter(report.dropped) if report is not None else Counter()
            for (route, reason), number in captured.items():
                if route == name and reason != CAPTURED:
                    dropped[reason] += number
            outcomes = dict(report.outcomes) if report is not None else {}
            mirrored = report.mirrored if report is not None else 0
            found[name] = ShadowCounts(captured[name, CAPTURED], mirrored, outcomes, dropped)
        return found

    def _captured(self) -> Counter[tuple[str, str]]:
        """What workers have captured since reports began anew."""
        counted = self._tally.captures()
        counted.subtract(self._counted_before)
        return counted

    def _mirrored(self) -> Mapping[str, Any]:
        if self._rules is None:
            return {}
        return {route.name: route.shadow for route in self._rules[0].routes if route.shadow is not None}

    # The process

    async def _mind(self) -> None:
        """Start it, and another whenever it dies."""
        pause = _FIRST_PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            since = loop.time()
            try:
                status = await self._run_one()
            except OSError as error:
                _log.error("cannot start the parity process: %s; trying again in %g s", error, pause)
            else:
                _log.error("the parity process ended with status %d; starting another in %g s", status, pause)
            self.restarts += 1
            if loop.time() - since > _WELL_AFTER_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _run_one(self) -> int:
        """Start one, and return its exit status when it is gone."""
        assert self._rules is not None
        process = WorkerProcess(self._heard, self._command)
        inherited = () if self._listener is None else (self._listener.fileno(),)
        await process.start(inherited)
        assert process.ended is not None
        rules, number = self._rules
        start = Start(replace(self._settings, workers=1), rules, number, self._found.conditions, self._found.models)
        process.say(replace(start, drained=self._drained, listener_fds=inherited))
        process.say(UseReports(self._reports))
        self._process = process
        try:
            return await asyncio.shield(process.ended)
        finally:
            if process.ended.done():
                self._process = None
                self._tally.retire(process)

    def _heard(self, process: WorkerProcess, message: Message) -> None:
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
            _log.error("the parity process: %s", message.message)

    def _take(self, reports: Mapping[str, RouteReport]) -> None:
        self._reports |= reports
        for name in [name for name in self._reports if name not in self._mirrored()][:-_MAX_REPORTS]:
            del self._reports[name]
