"""From captures to reports: each is judged worth asking or not, asked, compared and added."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256
from time import time
from typing import Any

from gateway.comparison.reply import ComparedReply, read_http
from gateway.comparison.report import RouteReport
from gateway.comparison.verdict import judge
from gateway.config.experiment_specs import ShadowSpec
from gateway.config.specs import RulesSpec
from gateway.dataplane.context.capture import Capture
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.snapshot import Lane
from gateway.parity.candidate_client import ask
from gateway.parity.captured_request import CapturedRequest, read_request
from gateway.parity.shadow_rules import Key, shadows
from gateway.protocol.errors import GatewayError
from gateway.wire.grpc import MessageReader, decompress

_log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 1 << 31
# From here on comparing takes longer than a thread; others' answers need not wait for it.
_THREAD_BYTES = 64 * 1024
# Clients choose these: a report keeps no more of them.
_MAX_NAME, _MAX_INPUTS = 200, 16
_DIGEST_LENGTH = 16  # hexadecimal digits: enough to find a request again


class Comparing:
    """Of all mirrored routes. `reports` are by route; those of routes that are mirrored no more stay."""

    def __init__(self, plane: DataPlane, rules: RulesSpec, places: Mapping[Key, int]) -> None:
        self.reports: dict[str, RouteReport] = {}
        self._in_flight: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._plane = plane
        self.use(rules, places)

    def __repr__(self) -> str:
        return f"<Comparing {len(self._shadows)} routes, {len(self._tasks)} in flight>"

    def use(self, rules: RulesSpec, places: Mapping[Key, int]) -> None:
        """These rules hold from now on; `places` are those of the plane's targets."""
        self._shadows = shadows(rules)
        self._places = places

    def forget(self, route: str) -> None:
        """Begin a route's report anew."""
        self.reports.pop(route, None)

    def take(self, capture: Capture, done: Callable[[str], None]) -> None:
        """A worker has handed this over; it is told, by the route, when that is done with."""
        route, model = capture.facts.route, capture.facts.model
        shadow, place = self._shadows.get(route), self._places.get((route, model))
        snapshot = self._plane.snapshot  # of the same rules as the places
        if shadow is None or place is None:  # it was captured before the rules changed
            done(route)
            return
        report = self._report(route, shadow)
        is_full = self._in_flight[route] >= shadow.max_in_flight  # by several workers together
        asked = None if is_full else read_request(capture)
        if asked is None or asked.refusal:
            report.drop(asked.refusal if asked is not None else "max_in_flight")
            done(route)
            return
        self._in_flight[route] += 1
        lane = snapshot.lane(snapshot.table.targets[place])
        task = self._plane.loop.create_task(self._compare(capture, asked, shadow, lane, report))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, route, done))

    def _ended(self, task: asyncio.Task[None], route: str, done: Callable[[str], None]) -> None:
        self._tasks.discard(task)
        self._in_flight[route] -= 1
        done(route)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _report(self, route: str, shadow: ShadowSpec) -> RouteReport:
        """The route's; a new one where the candidate, or the measure, is another."""
        report = self.reports.get(route)
        if report is None or not report.is_of(shadow):
            report = self.reports[route] = RouteReport(route, shadow, time())
        elif report.shadow is not shadow:
            report.shadow = shadow
        return report

    async def _compare(
        self, capture: Capture, asked: CapturedRequest, shadow: ShadowSpec, lane: Lane, report: RouteReport
    ) -> None:
        facts = capture.facts
        try:
            report.mirrored += 1
            primary = _primary(capture)
            candidate = await ask(self._plane, lane, capture, shadow.timeout)
            if max(len(primary.body), len(candidate.body)) < _THREAD_BYTES:
                verdict = judge(primary, candidate, asked.call, shadow)
            else:
                verdict = await asyncio.to_thread(judge, primary, candidate, asked.call, shadow)
            seconds = (primary.seconds, candidate.seconds, primary.first_seconds, candidate.first_seconds)
            are_good = primary.is_good and candidate.is_good
            report.answered(facts.engine, f"{_status(primary)}/{_status(candidate)}", seconds if are_good else None)
            report.add(verdict, _told(capture, asked, shadow, primary, candidate), time())
        except Exception:  # a fault of ours, which the log tells and no report must end by
            _log.exception("cannot compare a request of route '%s'", facts.route)
            report.drop("internal")


def _status(answer: ComparedReply) -> str:
    """As reports count it: HTTP's or gRPC's, or that there was none."""
    return "none" if answer.failure and not answer.status else str(answer.status)


def _primary(capture: Capture) -> ComparedReply:
    """The answer that the client had."""
    facts = capture.facts
    try:
        if not facts.is_call:
            return read_http(capture.answer, facts.seconds, facts.first_seconds)
        pieces = []
        for is_compressed, message in MessageReader(_MAX_MESSAGE_BYTES).feed(capture.answer):
            encoding = facts.answer_encoding.encode("latin-1")
            pieces.append(decompress(message, encoding, _MAX_MESSAGE_BYTES) if is_compressed else message)
        return ComparedReply(True, facts.status, b"".join(pieces), {}, facts.seconds, facts.first_seconds)
    except GatewayError as error:
        return ComparedReply(facts.is_call, facts.status, b"", {}, facts.seconds, failure=error.message)


def _told(
    capture: Capture, asked: CapturedRequest, shadow: ShadowSpec, primary: ComparedReply, candidate: ComparedReply
) -> dict[str, Any]:
    """What a report tells of a request: nothing that was asked or answered, unless excerpts are wanted."""
    facts = capture.facts
    told: dict[str, Any] = {
        "request_id": facts.request_id[:_MAX_NAME],
        "time": time(),
        "engine": facts.engine,
        "protocol": "grpc" if facts.is_call else "rest",
        "operation": asked.call.operation.value,
        "model": asked.model[:_MAX_NAME],
        "bytes": len(capture.request),
        "digest": sha256(capture.request).hexdigest()[:_DIGEST_LENGTH],
        "inputs": [
            {"name": each.name[:_MAX_NAME], "datatype": each.datatype[:_MAX_NAME], "shape": each.shape}
            for each in asked.inputs[:_MAX_INPUTS]
        ],
        "seconds": [primary.seconds, candidate.seconds],
        "statuses": [primary.status, candidate.status],
    }
    if shadow.excerpts:
        told["excerpt"] = asked.text[: shadow.excerpts]
    return told
