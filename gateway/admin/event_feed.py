"""`GET /events`: what the gateway publishes to its page: the fleet each second, new rules, experiments, decisions.

The workers are asked for counters only while there are subscribers, once for all of them. A slow subscriber loses its
oldest events and delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query
from fastapi.responses import StreamingResponse

from gateway.admin.access import Access
from gateway.admin.api_keys import Caller, Role
from gateway.admin.auth import Viewer
from gateway.admin.engines import engines_json
from gateway.admin.redaction import redacted_decision
from gateway.admin.traffic_rates import Traffic, TrafficRates
from gateway.config.specs import RouteSpec, RulesSpec
from gateway.observability.metrics import SHADOW_ARM
from gateway.supervision.control_plane import ControlPlane
from gateway.supervision.decision_feed import FeedSubscription

Json = dict[str, Any]

_log = logging.getLogger("pointsman")

_SECONDS = 1.0
# Events that are queued for a slow subscriber.
_MAX_QUEUED = 256
_DECISION = "decision"
# Decisions a second of each worker, which people read.
_TAIL_RATE = 10.0
# A comment in a silence keeps proxies from closing the connection.
_COMMENT_SECONDS = 10.0
_COMMENT = b": still here\n\n"

_DESCRIPTION = """A stream that lasts until the caller leaves, of these events, each with JSON as its data:

- `fleet`, each second: engines as in `GET /engines`, with `rate`, `error_rate`, `p50` and `p95` of the last five
  seconds; routes with `rate` and `errors` per second, `p50`, `p95` (seconds, null without requests) and their
  `engines`; `connections`, `workers`, `rules_number`
- `rules`, when other rules are in force: `number`, `digest`
- `experiment`, after each evaluation of the experiments: `experiments`, as in `GET /experiments`
- `decision`, with `decisions=true`: a request and its routing decision; for role viewer a digest stands for its session
"""


class Subscriber:
    """`next` returns its events, as bytes of an event stream, until the feed ends."""

    def __init__(self, wants_decisions: bool, sees_sessions: bool) -> None:
        self.wants_decisions = wants_decisions
        self.sees_sessions = sees_sessions
        self._queue: deque[bytes] = deque(maxlen=_MAX_QUEUED)
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, event: bytes) -> None:
        self._queue.append(event)
        self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    async def next(self, timeout: float) -> bytes | None:
        """The queued events, empty where none came within `timeout` seconds; None once the feed has ended."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout)
        if self._is_closed:
            return None
        self._changed.clear()
        events = b"".join(self._queue)
        self._queue.clear()
        return events


class Feed:
    """Publishes events to all subscribers."""

    def __init__(self, control: ControlPlane, *, seconds: float = _SECONDS) -> None:
        self._control = control
        self._seconds = seconds
        self._subscribers: set[Subscriber] = set()
        self._publishing: asyncio.Task[None] | None = None
        self._fleet = b""  # the last fleet event, for new subscribers
        self._tail = FeedSubscription(self.publish_decisions, _TAIL_RATE)
        self._is_closed = False
        control.experiments.on_tick(
            lambda experiments: self.publish("experiment", {"experiments": experiments}),
            lambda: bool(self._subscribers),
        )

    def publish(self, kind: str, data: Json) -> None:
        """Publish an event to all subscribers."""
        if self._subscribers:
            event = _event(kind, data)
            for subscriber in self._subscribers:
                subscriber.put(event)

    def publish_decisions(self, decisions: list[Json], skipped: int) -> None:
        """Publish decisions to subscribers that want them, with the names of sessions to operators alone."""
        header, digest = self._control.book.rules.identity.session_header, self._control.digests.of
        subscribers = [each for each in self._subscribers if each.wants_decisions]
        for sees_sessions in {each.sees_sessions for each in subscribers}:
            events = [
                _event(_DECISION, each if sees_sessions else redacted_decision(each, header, digest))
                for each in decisions
            ]
            for subscriber in subscribers:
                if subscriber.sees_sessions == sees_sessions:
                    for event in events:
                        subscriber.put(event)

    @contextmanager
    def subscription(self, *, wants_decisions: bool = False, sees_sessions: bool = False) -> Iterator[Subscriber]:
        """Subscribe for as long as the context lasts."""
        subscriber = Subscriber(wants_decisions, sees_sessions)
        if self._is_closed:
            subscriber.close()
        elif self._fleet:
            subscriber.put(self._fleet)
        self._subscribers.add(subscriber)
        if wants_decisions and self._num_wanting == 1:
            self._control.decisions.add(self._tail)
        if self._publishing is None and not self._is_closed:
            self._publishing = asyncio.get_running_loop().create_task(self._publish_fleet())
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
            if wants_decisions and not self._num_wanting:
                self._control.decisions.remove(self._tail)
            if not self._subscribers:
                self._stop()

    def close(self) -> None:
        """End all subscriptions at once."""
        self._is_closed = True
        self._stop()
        for subscriber in self._subscribers:
            subscriber.close()

    @property
    def _num_wanting(self) -> int:
        return sum(subscriber.wants_decisions for subscriber in self._subscribers)

    def _stop(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        self._fleet = b""

    async def _publish_fleet(self) -> None:
        """Each second, while there are subscribers."""
        book = self._control.book
        traffic, number = Traffic(), book.number
        due = monotonic()
        while True:
            try:
                if book.number != number:
                    number = book.number
                    self.publish("rules", {"number": number, "digest": book.rules.digest})
                self._fleet = _event("fleet", await self._fleet_json(traffic))
                for subscriber in self._subscribers:
                    subscriber.put(self._fleet)
            except Exception:  # a bug must not end the feed
                _log.exception("the fleet could not be published")
            due = max(due + self._seconds, monotonic())
            await asyncio.sleep(due - monotonic())

    async def _fleet_json(self, traffic: Traffic) -> Json:
        rules = self._control.book.rules
        state = await self._control.exposition()
        traffic.look(state.series, monotonic())
        by_engine = traffic.rates(lambda key: key.engine)
        by_place = traffic.rates(lambda key: (key.engine, key.endpoint))
        by_route = traffic.rates(lambda key: (key.route, key.arm == SHADOW_ARM))
        engines = engines_json(self._control.rules.engines, state, self._control.drained)
        for engine in engines:
            engine |= _recent_json(by_engine.get(engine["name"]))
            for endpoint in engine["endpoints"]:
                endpoint |= _recent_json(by_place.get((engine["name"], endpoint["url"])))
        routes = [
            {"name": route.name, "engines": engines_of(route, rules), **_rates_json(by_route.get((route.name, False)))}
            for route in rules.routes
        ]
        return {
            "engines": engines,
            "routes": routes,
            "unrouted": _rates_json(by_route.get(("", False))),
            "connections": state.connections,
            "workers": state.workers,
            "rules_number": state.rules_number,
        }


def engines_of(route: RouteSpec, rules: RulesSpec) -> list[str]:
    if route.experiment is not None and route.experiment in rules.experiments:
        return sorted({arm.engine for arm in rules.experiments[route.experiment].arms})
    return [route.engine] if route.engine is not None else []


def _rates_json(rates: TrafficRates | None) -> Json:
    return dict((rates or TrafficRates(0.0)).to_json())


def _recent_json(rates: TrafficRates | None) -> Json:
    """Beside an endpoint's `errors` since the start, the recent rate of errors is called `error_rate`."""
    recent = _rates_json(rates)
    return {"rate": recent["rate"], "error_rate": recent["errors"], "p50": recent["p50"], "p95": recent["p95"]}


def _event(kind: str, data: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode("ascii"), orjson.dumps(data))


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


def add_events(app: FastAPI, feed: Feed, access: Access) -> None:
    """Add `/events`."""

    @app.get(
        "/events",
        tags=["gateway"],
        description=_DESCRIPTION,
        response_class=EventStream,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def events(
        caller: Viewer,
        decisions: Annotated[bool, Query(description="Include decisions, which cost the workers some time.")] = False,
    ) -> EventStream:
        fields = {"cache-control": "no-store", "x-accel-buffering": "no"}  # no proxy may buffer the stream
        return EventStream(_events(feed, access, caller, decisions), headers=fields)


async def _events(feed: Feed, access: Access, caller: Caller, decisions: bool) -> AsyncIterator[bytes]:
    sees_sessions = caller.role >= Role.operator
    with feed.subscription(wants_decisions=decisions, sees_sessions=sees_sessions) as subscriber:
        while (events := await subscriber.next(_COMMENT_SECONDS)) is not None and access.holds(caller):
            yield events or _COMMENT
