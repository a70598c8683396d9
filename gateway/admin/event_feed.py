"""What the gateway tells by itself, to all who listen: the fleet each second, new rules, experiments, decisions.

Nothing is asked of the workers while nobody listens, and once for all who do. Who reads slowly misses what came longest
ago, and holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Protocol

import orjson

from gateway.admin.engines import EngineState, engines_told
from gateway.admin.traffic_rates import Traffic, TrafficRates
from gateway.config.specs import RouteSpec, RulesSpec
from gateway.observability.metrics import SHADOW_ARM

Json = dict[str, Any]

_log = logging.getLogger("pointsman")

_SECONDS = 1.0
# What may wait for one who reads slowly.
_MAX_WAITING = 256
_DECISION = "decision"


class FeedState(EngineState, Protocol):
    """Whoever knows the fleet, and the rules in force."""

    @property
    def rules_number(self) -> int: ...


class Listener:
    """One who listens; `next` gives him events, as bytes of a stream of events, until the feed ends."""

    def __init__(self, wants_decisions: bool) -> None:
        self.wants_decisions = wants_decisions
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)
        self._news = asyncio.Event()
        self._is_over = False

    def __repr__(self) -> str:
        return f"<Listener {len(self._waiting)} wait>"

    def hear(self, event: bytes) -> None:
        self._waiting.append(event)
        self._news.set()

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    async def next(self, patience: float) -> bytes | None:
        """What has come, empty where nothing did within so many seconds; None where nothing more comes."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), patience)
        if self._is_over:
            return None
        self._news.clear()
        events = b"".join(self._waiting)
        self._waiting.clear()
        return events


class Feed:
    """Tells all listeners; `publish` is for whoever has news."""

    def __init__(self, state: FeedState, *, seconds: float = _SECONDS) -> None:
        self._state = state
        self._seconds = seconds
        self._listeners: set[Listener] = set()
        self._telling: asyncio.Task[None] | None = None
        self._fleet = b""  # as last told, for who comes between two
        self._want_decisions: list[Callable[[bool], None]] = []
        self._is_over = False

    def __repr__(self) -> str:
        return f"<Feed {len(self._listeners)} listen>"

    def on_decisions_wanted(self, want: Callable[[bool], None]) -> None:
        """Have this called with True when the first one listens for decisions, with False when the last has gone."""
        self._want_decisions.append(want)

    def publish(self, kind: str, told: Json) -> None:
        """Tell whoever listens; decisions are told to those who asked for them."""
        listeners = [each for each in self._listeners if kind != _DECISION or each.wants_decisions]
        if listeners:
            event = _event(kind, told)
            for listener in listeners:
                listener.hear(event)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    @contextmanager
    def listening(self, *, wants_decisions: bool = False) -> Iterator[Listener]:
        """Listen for as long as the context lasts."""
        listener = Listener(wants_decisions)
        if self._is_over:
            listener.end()
        elif self._fleet:
            listener.hear(self._fleet)
        self._listeners.add(listener)
        if wants_decisions and self._num_wanting == 1:
            self._tell_wanted(True)
        if self._telling is None and not self._is_over:
            self._telling = asyncio.get_running_loop().create_task(self._tell())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if wants_decisions and not self._num_wanting:
                self._tell_wanted(False)
            if not self._listeners:
                self._stop()

    def close(self) -> None:
        """Let all listeners go, at once."""
        self._is_over = True
        self._stop()
        for listener in self._listeners:
            listener.end()

    @property
    def _num_wanting(self) -> int:
        return sum(listener.wants_decisions for listener in self._listeners)

    def _tell_wanted(self, is_wanted: bool) -> None:
        for want in self._want_decisions:
            want(is_wanted)

    def _stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._fleet = b""

    async def _tell(self) -> None:
        """Each second, for as long as somebody listens."""
        traffic, number = Traffic(), self._state.rules_number
        due = monotonic()
        while True:
            try:
                if self._state.rules_number != number:
                    number = self._state.rules_number
                    self.publish("rules", {"number": number, "digest": self._state.rules.digest})
                told = await self._fleet_told(traffic)
                self._fleet = _event("fleet", told)
                for listener in self._listeners:
                    listener.hear(self._fleet)
            except Exception:  # a fault of ours must not end the feed
                _log.exception("the fleet could not be told")
            due = max(due + self._seconds, monotonic())
            await asyncio.sleep(due - monotonic())

    async def _fleet_told(self, traffic: Traffic) -> Json:
        state, rules = self._state, self._state.rules
        now = await state.exposition()
        traffic.look(now.series, monotonic())
        by_engine = traffic.flows(lambda key: key.engine)
        by_place = traffic.flows(lambda key: (key.engine, key.endpoint))
        by_route = traffic.flows(lambda key: (key.route, key.arm == SHADOW_ARM))
        engines = engines_told(rules, now, state.drained)
        for engine in engines:
            engine |= _of_late(by_engine.get(engine["name"]))
            for endpoint in engine["endpoints"]:
                endpoint |= _of_late(by_place.get((engine["name"], endpoint["url"])))
        routes = [
            {"name": route.name, "engines": engines_of(route, rules), **_told(by_route.get((route.name, False)))}
            for route in rules.routes
        ]
        return {
            "engines": engines,
            "routes": routes,
            "unrouted": _told(by_route.get(("", False))),
            "connections": now.connections,
            "workers": now.workers,
            "rules_number": now.rules_number,
        }


def engines_of(route: RouteSpec, rules: RulesSpec) -> list[str]:
    """Where a route's requests may go."""
    if route.experiment is not None and route.experiment in rules.experiments:
        return sorted({arm.engine for arm in rules.experiments[route.experiment].arms})
    return [route.engine] if route.engine is not None else []


def _told(flow: TrafficRates | None) -> Json:
    return dict((flow or TrafficRates(0.0)).told())


def _of_late(flow: TrafficRates | None) -> Json:
    """Beside an endpoint's counts, which go back to the start, the rate of errors has a name of its own."""
    told = _told(flow)
    return {"rate": told["rate"], "error_rate": told["errors"], "p50": told["p50"], "p95": told["p95"]}


def _event(kind: str, told: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode("ascii"), orjson.dumps(told))
