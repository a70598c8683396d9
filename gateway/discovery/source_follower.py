"""Follows one source of endpoints for as long as rules name it. The clients' libraries, which take long to load, are
imported where a source needs them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from gateway.config.source_specs import SourceSpec
from gateway.discovery.endpoint_file import EndpointFile
from gateway.discovery.source_state import FoundEndpoint, SourceError, SourceState
from gateway.net.backoff import Backoff

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5, 30.0
# A watch that has lasted so long was no failure.
_HEALTHY_SECONDS = 10.0
_FILE_SECONDS = 1.0
# Between two requests for a list, though endpoints are down.
_LEAST_LIST_SECONDS = 1.0


class SourceFollower:
    """Keeps a `SourceState` up to date; `changed` is called after each answer."""

    def __init__(self, source: SourceSpec, changed: Callable[[], None]) -> None:
        self.source = source
        self.state = SourceState(source)
        self.has_tried = asyncio.Event()  # it has answered or failed
        self._changed = changed
        self._wake = asyncio.Event()
        self._backoff = Backoff(*_PAUSE_SECONDS, healthy_after=_HEALTHY_SECONDS)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def look(self) -> None:
        """Query a name again soon: an endpoint is down, and may have moved."""
        self._wake.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        follow = self._follow_name
        if self.source.kubernetes is not None:
            follow = self._follow_service
        elif self.source.file is not None:
            follow = self._follow_file
        elif self.source.http is not None:
            follow = self._follow_list
        while True:
            try:
                await follow()
            except Exception as error:  # a bug must not end it
                _log.exception("%s cannot be followed", self.source.label)
                self._failed(str(error) or type(error).__name__)
                await self._pause(self._backoff.failed())

    async def _follow_name(self) -> None:
        from gateway.discovery.dns_client import SECONDS_WITHOUT_TTL, DnsClient

        client, source = DnsClient(self.source), self.source
        while True:
            try:
                resolution = await client.resolve()
            except SourceError as error:
                self._failed(str(error))
                seconds = self._backoff.failed()
            else:
                self._backoff.reset()
                self._answered(list(resolution.endpoints))
                ttl = SECONDS_WITHOUT_TTL if resolution.ttl is None else resolution.ttl
                seconds = min(max(ttl, source.min_refresh), source.max_refresh)
            self._wake.clear()
            await asyncio.sleep(min(seconds, source.min_refresh))
            await self._pause(seconds - min(seconds, source.min_refresh))

    async def _follow_service(self) -> None:
        from gateway.discovery.kubernetes_client import KubernetesClient

        client, loop = KubernetesClient(self.source, self._answered), asyncio.get_running_loop()
        while True:
            since = loop.time()
            try:
                await client.follow()
            except SourceError as error:
                self._failed(str(error))
            # A server that ends each watch at once must not be flooded either
            pause = self._backoff.failed(loop.time() - since)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _follow_file(self) -> None:
        file = EndpointFile(self.source)
        while True:
            try:
                found = await asyncio.to_thread(file.read_changed)
            except SourceError as error:
                self._failed(str(error))
            else:
                if found is not None:
                    self._answered(found)
                self.state.confirmed(asyncio.get_running_loop().time())
            await asyncio.sleep(_FILE_SECONDS)

    async def _follow_list(self) -> None:
        from gateway.discovery.list_client import ListClient

        client, interval = ListClient(self.source), self.source.interval
        while True:
            try:
                self._answered(await client.request())
            except SourceError as error:
                self._failed(str(error))
            self._wake.clear()
            await asyncio.sleep(min(interval, _LEAST_LIST_SECONDS))
            await self._pause(interval - min(interval, _LEAST_LIST_SECONDS))

    async def _pause(self, seconds: float) -> None:
        """Wait, with jitter; not longer than until `look`."""
        try:
            async with asyncio.timeout(seconds * random.uniform(0.9, 1.1)):
                await self._wake.wait()
        except TimeoutError:
            return

    def _answered(self, found: list[FoundEndpoint]) -> None:
        state, had_answer = self.state, self.state.answered_at is not None
        had_error, left_out, was_empty = state.error, state.left_out, state.is_empty
        state.answered(found, asyncio.get_running_loop().time())
        label = self.source.label
        if had_error:
            _log.info("%s answers again", label)
        if state.left_out and not left_out:
            what = "%s has %d endpoints more than max_endpoints, %d: they are left out"
            _log.warning(what, label, state.left_out, self.source.max_endpoints)
        if not found and not had_answer:
            _log.warning("%s has no endpoint", label)
        if state.is_empty and not was_empty:
            seconds = self.source.seconds_when_empty
            _log.warning("%s has no endpoint any more: those that it had stay for %g s", label, seconds)
        self.has_tried.set()
        self._changed()

    def _failed(self, error: str) -> None:
        if self.state.failed(error):
            _log.warning("%s does not answer, so its endpoints stay as they are: %s", self.source.label, error)
        self.has_tried.set()
