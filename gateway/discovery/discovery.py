"""The endpoints of engines that have sources: followed, merged with those that rules list, and reported as a whole."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.source_specs import SourceSpec
from gateway.discovery.source_follower import SourceFollower
from gateway.discovery.source_state import FoundEndpoint
from gateway.observability.stats import SourceStatus

_log = logging.getLogger(__name__)

# Answers that come together are reported together.
_GATHER_SECONDS = 0.05
_MAX_NAMED = 5

Key = tuple[str, str]  # engine name, endpoint url
Endpoints = dict[str, tuple[EndpointSpec, ...]]


class Discovery:
    """Follows the sources of all engines. `changed` gets the endpoints of engines where they have changed; `endpoints`
    has those of all engines with sources, `leaving` those of them that finish what they began, and since when."""

    def __init__(self, changed: Callable[[Endpoints], None]) -> None:
        self._changed = changed
        self._engines: dict[str, EngineSpec] = {}  # those with sources
        self._followers: dict[SourceSpec, SourceFollower] = {}
        # Of sources that an engine had before, until those that it has now have answered
        self._former: dict[str, list[FoundEndpoint]] = {}
        self._timer: asyncio.TimerHandle | None = None  # of the next report
        self._due = 0.0  # when that is
        self.endpoints: Endpoints = {}
        self.leaving: dict[Key, float] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def use(self, engines: Mapping[str, EngineSpec]) -> None:
        """Follow the sources of these engines; those that stay keep what they have found."""
        before, self._engines = self._engines, {name: each for name, each in engines.items() if each.sources}
        wanted = dict.fromkeys(source for engine in self._engines.values() for source in engine.sources)
        for source in wanted:
            if source not in self._followers:
                self._followers[source] = SourceFollower(source, self._report_soon)
                self._followers[source].start()
        for name, engine in self._engines.items():
            if name in before and before[name].sources != engine.sources:
                self._former[name] = self._found(before[name].sources)
        self._former = {name: found for name, found in self._former.items() if name in self._engines}
        for source in [source for source in self._followers if source not in wanted]:
            closing = asyncio.get_running_loop().create_task(self._followers.pop(source).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._report()

    async def first_answers(self, timeout: float) -> None:
        """Wait until each source has answered or failed, or for `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for follower in list(self._followers.values()):
                    await follower.has_tried.wait()
        self._report()

    def look(self, keys: Iterable[Key]) -> None:
        """These endpoints are down: names may have other addresses."""
        for name in {name for name, _ in keys if name in self._engines}:
            for source in self._engines[name].sources:
                self._followers[source].look()

    def statuses(self) -> list[SourceStatus]:
        """Of each source of each engine."""
        since_1970 = time.time() - asyncio.get_running_loop().time()
        return [
            self._followers[source].state.status(name, since_1970)
            for name, engine in self._engines.items()
            for source in engine.sources
        ]

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        followers = [follower.close() for follower in self._followers.values()]
        await asyncio.gather(*followers, *self._closing, return_exceptions=True)

    def _found(self, sources: Iterable[SourceSpec]) -> list[FoundEndpoint]:
        followers = [self._followers[source] for source in sources if source in self._followers]
        return [found for follower in followers for found in follower.state.endpoints]

    def _report_soon(self) -> None:
        self._report_at(asyncio.get_running_loop().time() + _GATHER_SECONDS)

    def _report_at(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = loop.call_at(due, self._report)

    def _report(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = asyncio.get_running_loop().time()
        states = [follower.state for follower in self._followers.values()]
        for state in states:
            state.expire(now)
        before, leaving_before = self.endpoints, self.leaving
        self.endpoints, leaving = {}, set()
        for name, engine in self._engines.items():
            states_of_engine = [self._followers[source].state for source in engine.sources]
            if all(state.answered_at is not None for state in states_of_engine):
                self._former.pop(name, None)
            found = [*self._found(engine.sources), *self._former.get(name, ())]
            merged = merge(engine.endpoints, found)
            self.endpoints[name] = tuple(each.spec for each in merged)
            leaving |= {(name, each.spec.url) for each in merged if each.is_leaving}
        wall = time.time()
        self.leaving = {key: leaving_before.get(key, wall) for key in leaving}
        changes = {name: each for name, each in self.endpoints.items() if before.get(name) != each}
        for name, each in changes.items():
            _log_change(name, before.get(name, ()), each)
        ends = [state.expires_at for state in states]
        if due := min((each for each in ends if each is not None), default=None):
            self._report_at(due)
        if changes or self.leaving != leaving_before:
            self._changed(changes)


def merge(declared: Iterable[EndpointSpec], found: Iterable[FoundEndpoint]) -> list[FoundEndpoint]:
    """All endpoints of an engine, each once: as rules list it, else as the first source has it for which it does not
    leave."""
    merged = {each.url: FoundEndpoint(each) for each in declared}
    for each in sorted(found, key=lambda each: each.is_leaving):
        merged.setdefault(each.spec.url, each)
    return list(merged.values())


def _log_change(name: str, before: tuple[EndpointSpec, ...], after: tuple[EndpointSpec, ...]) -> None:
    urls_before, urls = [each.url for each in before], [each.url for each in after]
    parts = []
    for verb, some, others in (("joined", urls, urls_before), ("left", urls_before, urls)):
        known = set(others)
        changed = [url for url in some if url not in known]
        if changed:
            more = f" and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
            parts.append(f"{verb}: {', '.join(changed[:_MAX_NAMED])}{more}")
    if parts:
        _log.info("engine '%s' has %d endpoints; %s", name, len(urls), "; ".join(parts))
