"""What a source of endpoints has answered, and what is used of it. Pure: time is an argument.

A source that fails keeps the endpoints of its last answer. One that has no endpoint any more keeps them for a grace
time. An endpoint that has left is drained for a time before it is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.config.engine_specs import EndpointSpec
from gateway.config.source_specs import SourceSpec
from gateway.observability.stats import SourceStatus


class SourceError(Exception):
    """A source does not answer, or not as it should; the message says why."""


class FoundEndpoint(NamedTuple):
    """An endpoint of a source; one that `is_leaving` finishes what it began."""

    spec: EndpointSpec
    is_leaving: bool = False


@dataclass(slots=True)
class SourceState:
    """One source. `failures` are those since its start."""

    spec: SourceSpec
    answered_at: float | None = None
    failures: int = 0
    error: str = ""
    left_out: int = 0
    _current: dict[str, FoundEndpoint] = field(default_factory=dict)
    _left: dict[str, tuple[EndpointSpec, float]] = field(default_factory=dict)  # and until when each is drained
    _empty_since: float | None = None

    @property
    def is_empty(self) -> bool:
        return self._empty_since is not None

    def answered(self, found: Iterable[FoundEndpoint], now: float) -> None:
        """Take over an answer."""
        self.answered_at, self.error = now, ""
        # In one order, whatever the answer's: otherwise a name that rotates its addresses would change all the time
        by_url: dict[str, FoundEndpoint] = {}
        for each in sorted(found, key=lambda each: (each.is_leaving, each.spec.url)):
            by_url.setdefault(each.spec.url, each)
        most = self.spec.max_endpoints
        self.left_out = max(0, len(by_url) - most)
        latest = dict(list(by_url.items())[:most])
        if latest:
            self._empty_since = None
        elif self._current and self.spec.seconds_when_empty:
            if self._empty_since is None:
                self._empty_since = now
            return
        self._replace(latest, now)

    def confirmed(self, now: float) -> None:
        """The last answer still holds."""
        self.answered_at = now

    def failed(self, error: str) -> bool:
        """Note that there is no answer; returns whether this error is another one than the last."""
        self.failures += 1
        before, self.error = self.error, error
        return error != before

    def _replace(self, latest: Mapping[str, FoundEndpoint], now: float) -> None:
        for url, each in self._current.items():
            if url not in latest and self.spec.drain_seconds:
                self._left[url] = each.spec, now + self.spec.drain_seconds
        for url in latest:
            self._left.pop(url, None)
        excess = len(self._left) - self.spec.max_endpoints  # of a name that has others each time
        for url in list(self._left)[: max(0, excess)]:
            del self._left[url]
        self._current = dict(latest)

    def expire(self, now: float) -> None:
        """Drop what has been kept for long enough."""
        if self._empty_since is not None and now >= self._empty_since + self.spec.seconds_when_empty:
            self._empty_since = None
            self._replace({}, now)
        self._left = {url: each for url, each in self._left.items() if each[1] > now}

    @property
    def expires_at(self) -> float | None:
        """When `expire` has something to do."""
        ends = [until for _, until in self._left.values()]
        if self._empty_since is not None:
            ends.append(self._empty_since + self.spec.seconds_when_empty)
        return min(ends, default=None)

    @property
    def endpoints(self) -> list[FoundEndpoint]:
        return [*self._current.values(), *(FoundEndpoint(spec, True) for spec, _ in self._left.values())]

    def status(self, engine: str, since_1970: float) -> SourceStatus:
        """`since_1970` is the time since 1970 at the time 0 of `now`."""
        found = self.endpoints
        num_leaving = sum(each.is_leaving for each in found)
        answered_at = self.answered_at + since_1970 if self.answered_at is not None else 0.0
        counts = len(found) - num_leaving, num_leaving
        return SourceStatus(
            engine, self.spec.label, *counts, answered_at, self.failures, self.error, self.is_empty, self.left_out
        )
