"""The shadow process from the control process' side: started where a route has a shadow, restarted when it dies.

Its reports are stored here, so that they outlive it; a reader gets the latest that it delivers in time, summed over all
gateways (see `shadow_reports`).
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
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any

from gateway.config.experiment_specs import ShadowSpec
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control.messages import ForgetReport, GetCounters, GetReports, UseReports
from gateway.observability.stats import ShadowCounts
from gateway.redis.command import StoreError
from gateway.shadow.comparison.report import RouteReport
from gateway.shadow.comparison.report_state import read_report, write_report
from gateway.supervision.shadow_reports import ReportFiles, SharedReports
from gateway.supervision.worker_counters import WorkerCounters
from gateway.supervision.worker_pool import WorkerPool

_log = logging.getLogger("pointsman")

COMMAND = (sys.executable, "-m", "gateway.shadow")
CAPTURED = "captured"

_START_SECONDS = 30.0
# Reports of routes that are no longer mirrored stay readable, up to this number.
_MAX_REPORTS = 100

Json = dict[str, Any]


class ShadowSupervisor:
    """Owns the process, its socket and its reports. `counters` are the workers': they count requests to candidates, and
    what workers have captured."""

    def __init__(
        self,
        settings: Settings,
        rules: RulesSpec,
        counters: WorkerCounters,
        command: Sequence[str] = COMMAND,
        shared: SharedReports | None = None,
    ) -> None:
        """`shared` are the reports of all gateways; None: this one's are kept in memory."""
        self._rules = rules
        self._shared = shared or SharedReports(ReportFiles(None))
        self._is_unshared = False  # Redis does not take reports
        self._counters = counters
        self._folder = Path(tempfile.gettempdir()) / f"pointsman-{token_hex(8)}"  # made when it is first needed
        self._is_running = False
        self._reports: dict[str, RouteReport] = {}
        self._reset_counts: Counter[tuple[str, str]] = Counter()  # captures counted before a report was reset
        settings = replace(settings, workers=1, drain_timeout=0.0)
        self.pool = WorkerPool(settings, rules, (), command, name="shadow process", counters=counters)
        self.pool.set(UseReports(self._reports))  # as they are when a process starts

    @property
    def socket_path(self) -> str:
        return str(self._folder / "captures")

    # The process

    def use_rules(self, rules: RulesSpec, number: int) -> None:
        """Mirror by these rules from now on."""
        self._rules = rules
        self.pool.use_rules(rules, number)
        if self._mirrored() and not self._is_running:
            if find_spec("numpy") is None:
                _log.error('nothing is mirrored: numpy is not installed; pip install "pointsman[shadow]"')
                return
            self._is_running = True
            self._listen()
            self.pool.start_soon()

    def _listen(self) -> None:
        """Open the socket for captures; it belongs to this process, so that it outlives the child and its successors
        inherit it."""
        try:
            self._folder.mkdir(mode=0o700)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(self.socket_path)
            listener.listen()
        except OSError as error:
            _log.error("nothing can be mirrored: %s cannot be made: %s", self.socket_path, error)
        else:
            self.pool.listeners.append(listener)

    async def ready(self) -> None:
        """Wait until the process serves, where it is needed, up to a limit: workers do without it."""
        if self._is_running:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.pool.served.wait(), _START_SECONDS)

    async def count(self) -> None:
        """Bring reports and counts up to date, as far as the process answers in time."""
        replies = await asyncio.gather(self.pool.query(GetCounters()), self.pool.query(GetReports()))
        for reports in replies[1]:
            self._reports |= reports
            for name in [name for name in self._reports if name not in self._mirrored()][:-_MAX_REPORTS]:
                del self._reports[name]

    async def share(self) -> None:
        """Add what is new to the reports of all gateways, and read theirs, as far as Redis answers."""
        try:
            for route, shadow in self._mirrored().items():
                if await self._shared.share(route, shadow, self._own(route, shadow)):
                    self._forget(route)
            self._is_unshared = False
        except StoreError as error:
            if not self._is_unshared:
                _log.warning("reports of mirrored routes are not shared while Redis is unavailable: %s", error)
            self._is_unshared = True

    def _own(self, route: str, shadow: ShadowSpec) -> Json:
        """What this gateway has counted of a route; empty where that is nothing."""
        report = self._reports.get(route)
        if report is None or not report.is_of(shadow):
            return {}
        return write_report(report, self._captured(route))

    def _captured(self, route: str) -> dict[str, int]:
        """What the workers have captured or not, by reason, since the report was reset."""
        captured = self._counters.captures()
        captured.subtract(self._reset_counts)
        return {reason: number for (name, reason), number in captured.items() if name == route and number > 0}

    async def close(self) -> None:
        """Stop the process and drop the comparisons under way."""
        if self._is_running:
            await self.count()
            await self.share()
        await self.pool.drain()
        await self.pool.close()
        for listener in self.pool.listeners:
            listener.close()
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
        if shadow is None and report is None:
            return None
        captured = Counter(self._captured(route))
        if shadow is not None:
            own = self._own(route, shadow)
            total = self._shared.total(route, shadow, own)
            report = RouteReport(route, shadow, 0.0)
            if total:
                try:
                    report, shared = read_report(route, shadow, total)
                    captured = shared if own else shared + captured  # before its first comparison it shares nothing
                except (TypeError, ValueError, AttributeError, KeyError) as error:
                    _log.warning("the stored report of route '%s' cannot be read: %r", route, error)
        assert report is not None
        return report.to_json() | {
            "active": shadow is not None,
            "captured": captured.pop(CAPTURED, 0),
            "dropped": dict(report.dropped + captured),
            "since": report.since or None,
        }

    async def reset(self, route: str) -> bool:
        """Begin a route's report anew, on all gateways; False where there is none.

        Raises: StoreError where others cannot be told.
        """
        if self.report(route) is None:
            return False
        self._forget(route)
        shadow = self._mirrored().get(route)
        if shadow is not None:
            await self._shared.reset(route, shadow, time())
        return True

    def _forget(self, route: str) -> None:
        self._reports.pop(route, None)
        self.pool.send(ForgetReport(route))
        counted = self._counters.captures()
        self._reset_counts.update({key: counted[key] - self._reset_counts[key] for key in counted if key[0] == route})

    def counts(self) -> dict[str, ShadowCounts]:
        """By route, for metrics."""
        captured = self._counters.captures()
        counts: dict[str, ShadowCounts] = {}
        for name in {*self._reports, *(route for route, _ in captured)}:
            report = self._reports.get(name)
            dropped = _dropped(report, name, captured)
            outcomes = dict(report.outcomes) if report is not None else {}
            mirrored = report.mirrored if report is not None else 0
            counts[name] = ShadowCounts(captured[name, CAPTURED], mirrored, outcomes, dropped)
        return counts

    def _mirrored(self) -> Mapping[str, ShadowSpec]:
        return {route.name: route.shadow for route in self._rules.routes if route.shadow is not None}


def _dropped(report: RouteReport | None, route: str, captured: Counter[tuple[str, str]]) -> Counter[str]:
    """Requests of a route that were not compared, by reason: dropped by the shadow process, or not captured."""
    dropped = Counter(report.dropped) if report is not None else Counter()
    for (name, reason), number in captured.items():
        if name == route and reason != CAPTURED and number:
            dropped[reason] += number
    return dropped
