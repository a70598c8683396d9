"""From captures to reports: each capture is repeated at the candidate, compared with the original reply and counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from time import time
from typing import Any

from gateway.config.experiment_specs import ShadowSpec
from gateway.config.specs import MatchSpec, RouteSpec, RulesSpec
from gateway.dataplane.context.capture import Capture
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.errors import GatewayError
from gateway.shadow.candidate_client import query_candidate
from gateway.shadow.captured_request import CapturedRequest, read_request
from gateway.shadow.comparison.reply import ComparedReply, read_http
from gateway.shadow.comparison.report import RouteReport
from gateway.shadow.comparison.verdict import judge
from gateway.wire.grpc import MessageReader, decompress

_log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 1 << 31
# From this size on, a comparison takes longer than the switch to a thread.
_THREAD_BYTES = 64 * 1024
# Bounds on what clients choose.
_MAX_NAME, _MAX_INPUTS = 200, 16
_DIGEST_LENGTH = 16  # hexadecimal digits: enough to find a request again

Key = tuple[str, str | None]  # a route, and the model's name at the engine that replied


def shadow_rules(rules: RulesSpec) -> tuple[RulesSpec, dict[Key, int]]:
    """Rules in which each mirrored route leads to its shadow's engine alone, and the place of each target: by route and
    by each name that its model may have at the route's own engines."""
    routes: list[RouteSpec] = []
    places: dict[Key, int] = {}
    for route in rules.routes:
        if route.shadow is None:
            continue
        for model in dict.fromkeys(_models(route, rules)):
            places[route.name, model] = len(routes)
            routes.append(
                RouteSpec(route.name, MatchSpec(), engine=route.shadow.engine, model=route.shadow.model or model)
            )
    engines = {route.engine: rules.engines[route.engine] for route in routes if route.engine is not None}
    identity = replace(rules.identity, session_cookie=None)
    return RulesSpec(engines, tuple(routes), identity=identity, digest=rules.digest), places


def shadows(rules: RulesSpec) -> dict[str, ShadowSpec]:
    return {route.name: route.shadow for route in rules.routes if route.shadow is not None}


def _models(route: RouteSpec, rules: RulesSpec) -> list[str | None]:
    """What the engines of a route may call the model; None: the name in the request."""
    if route.experiment is None:
        return [route.model]
    return [arm.model or route.model for arm in rules.experiments[route.experiment].arms]


class ShadowComparator:
    """Compares for all mirrored routes. `reports` are by route; those of routes that are no longer mirrored stay."""

    def __init__(self, plane: DataPlane, rules: RulesSpec, places: Mapping[Key, int]) -> None:
        self.reports: dict[str, RouteReport] = {}
        self._in_flight: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._plane = plane
        self.use(rules, places)

    def use(self, rules: RulesSpec, places: Mapping[Key, int]) -> None:
        self._shadows = shadows(rules)
        self._places = places

    def take(self, capture: Capture, done: Callable[[str], None]) -> None:
        """Compare a worker's capture; `done` is called with the route when that has ended."""
        route, model = capture.facts.route, capture.facts.model
        shadow, place = self._shadows.get(route), self._places.get((route, model))
        snapshot = self._plane.snapshot  # of the same rules as the places
        if shadow is None or place is None:  # captured before the rules changed
            done(route)
            return
        report = self._report(route, shadow)
        is_full = self._in_flight[route] >= shadow.max_in_flight  # by several workers together
        request = None if is_full else read_request(capture)
        if request is None or request.refusal:
            report.drop(request.refusal if request is not None else "max_in_flight")
            done(route)
            return
        self._in_flight[route] += 1
        route_target = snapshot.route_target(snapshot.table.targets[place])
        task = self._plane.loop.create_task(self._compare(capture, request, shadow, route_target, report))
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
        """The route's report; a new one where the candidate or the tolerance has changed."""
        report = self.reports.get(route)
        if report is None or not report.is_of(shadow):
            report = self.reports[route] = RouteReport(route, shadow, time())
        elif report.shadow is not shadow:
            report.shadow = shadow
        return report

    async def _compare(
        self,
        capture: Capture,
        request: CapturedRequest,
        shadow: ShadowSpec,
        route_target: RouteTarget,
        report: RouteReport,
    ) -> None:
        facts = capture.facts
        try:
            report.mirrored += 1
            primary = _primary(capture)
            candidate = await query_candidate(self._plane, route_target, capture, shadow.timeout)
            if max(len(primary.body), len(candidate.body)) < _THREAD_BYTES:
                verdict = judge(primary, candidate, request.call, shadow)
            else:
                verdict = await asyncio.to_thread(judge, primary, candidate, request.call, shadow)
            seconds = (primary.seconds, candidate.seconds, primary.first_seconds, candidate.first_seconds)
            are_good = primary.is_good and candidate.is_good
            report.answered(facts.engine, f"{_status(primary)}/{_status(candidate)}", seconds if are_good else None)
            report.add(verdict, _facts_json(capture, request, shadow, primary, candidate), time())
        except Exception:  # a bug here must not end the report
            _log.exception("cannot compare a request of route '%s'", facts.route)
            report.drop("internal")


def _status(reply: ComparedReply) -> str:
    """HTTP's or gRPC's status as reports count it; "none" where there was no reply."""
    return "none" if reply.failure and not reply.status else str(reply.status)


def _primary(capture: Capture) -> ComparedReply:
    """The reply that the client got."""
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


def _facts_json(
    capture: Capture, request: CapturedRequest, shadow: ShadowSpec, primary: ComparedReply, candidate: ComparedReply
) -> dict[str, Any]:
    """What a report shows of a request: no part of its body or of the replies, unless the route allows excerpts."""
    facts = capture.facts
    entry: dict[str, Any] = {
        "request_id": facts.request_id[:_MAX_NAME],
        "time": time(),
        "engine": facts.engine,
        "protocol": "grpc" if facts.is_call else "rest",
        "operation": request.call.operation.value,
        "model": request.model[:_MAX_NAME],
        "bytes": len(capture.request),
        "digest": sha256(capture.request).hexdigest()[:_DIGEST_LENGTH],
        "inputs": [
            {"name": each.name[:_MAX_NAME], "datatype": each.datatype[:_MAX_NAME], "shape": each.shape}
            for each in request.inputs[:_MAX_INPUTS]
        ],
        "seconds": [primary.seconds, candidate.seconds],
        "statuses": [primary.status, candidate.status],
    }
    if shadow.excerpts:
        entry["excerpt"] = request.text[: shadow.excerpts]
    return entry
