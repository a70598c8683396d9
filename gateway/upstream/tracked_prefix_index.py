"""The prefix index of an engine whose events are followed: it reports new prompts, and takes over what is cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gateway.config.engine_specs import PrefixSpec
from gateway.upstream.cached_blocks import BlockChanges
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.prefix_index import PrefixIndex

# Of prompts that wait to be reported: more are not followed until they are seen again.
_MAX_PROMPTS, _MAX_BYTES = 256, 8 << 20
_MAX_BODY_BYTES = 1 << 20  # of one request; what a longer one has in common with others is guessed


class SeenPrompt(NamedTuple):
    """A request's body, and where its prompt begins."""

    body: bytes
    start: int


class TrackedPrefixIndex(PrefixIndex):
    """`on_seen` is called when a first prompt waits for `take_seen`."""

    def __init__(self, spec: PrefixSpec) -> None:
        super().__init__(spec)
        self.on_seen: Callable[[TrackedPrefixIndex], None] | None = None
        self._seen: list[SeenPrompt] = []
        self._seen_bytes = 0

    def choose(
        self, endpoints: Sequence[Endpoint], session: str | None, prompt: bytes | memoryview, now: float
    ) -> Endpoint:
        before = self._num_young
        chosen = super().choose(endpoints, session, prompt, now)
        # A block that has moved to the young generation counts, too: it is old
        if self._num_young != before and self.on_seen is not None and type(prompt) is memoryview:
            body = prompt.obj
            if (
                type(body) is bytes
                and len(body) <= _MAX_BODY_BYTES
                and len(self._seen) < _MAX_PROMPTS
                and self._seen_bytes + len(body) <= _MAX_BYTES
            ):
                self._seen.append(SeenPrompt(body, len(body) - len(prompt)))
                self._seen_bytes += len(body)
                if len(self._seen) == 1:
                    self.on_seen(self)
        return chosen

    def take_seen(self) -> list[SeenPrompt]:
        seen, self._seen, self._seen_bytes = self._seen, [], 0
        return seen

    def apply(self, changes: Mapping[str, BlockChanges], now: float) -> None:
        """These endpoints' caches have changed, by URL."""
        for url, change in changes.items():
            if change.is_cleared:
                self._num_young -= len(self._young.pop(url, ()))
                self._old.pop(url, None)
            self._forget(url, [checksum for checksum, is_cached in change.cached.items() if not is_cached])
            if cached := [checksum for checksum, is_cached in change.cached.items() if is_cached]:
                self._note(url, cached[: self._half], now)

    def _forget(self, url: str, checksums: list[int]) -> None:
        young = self._young.get(url)
        if young:
            before = len(young)
            young.difference_update(checksums)
            self._num_young -= before - len(young)
        if url in self._old:
            self._old[url].difference_update(checksums)
