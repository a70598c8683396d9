"""The stream of one endpoint's KV events: numbered batches, which are replayed or begun with anew where some are lost.

Pure, but for what `replay` does: the socket is the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from gateway.protocol.kv_events import read_batch
from gateway.upstream.cached_blocks import CachedBlocks

_log = logging.getLogger(__name__)

# Requests the batches from a sequence number on: (number, payload) of each, as far as the engine still has them.
Replay = Callable[[int], Iterable[tuple[int, bytes]]]


class KvEventStream:
    """Applies batches to `blocks`. `replay` is None where the engine does not send again what was missed."""

    def __init__(self, url: str, blocks: CachedBlocks, replay: Replay | None) -> None:
        self._url = url
        self._blocks = blocks
        self._replay = replay
        self._next: int | None = None  # the number to apply next; None: no batch was applied yet
        self._last_live: int | None = None  # the number of the last batch that came by itself
        self.num_unreadable = 0

    def connected(self) -> None:
        """The endpoint publishes: what it has stored before is requested."""
        if self._next is None:
            self._catch_up(0)

    def lost(self) -> None:
        """The connection is lost: the endpoint may be another when it comes back, and events are missed meanwhile."""
        self._blocks.clear(self._url)
        self._next = self._last_live = None

    def receive(self, number: int, payload: bytes) -> None:
        """A batch has come."""
        if self._last_live is not None and number <= self._last_live:
            self.lost()  # the engine has started again
        self._last_live = number
        if self._next is None and number:
            self._catch_up(0, number)
        elif self._next is not None and number > self._next:
            self._catch_up(self._next, number)
            if number > self._next:
                self._blocks.num_gaps += 1
                if _is_logged(self._blocks.num_gaps):
                    _log.warning("%d batches of KV events of %s are lost", number - self._next, self._url)
                self._blocks.clear(self._url)
        if self._next is None or number >= self._next:  # else it has come by a replay
            self._apply(number, payload)

    def _catch_up(self, first: int, until: int | None = None) -> None:
        """Apply the batches of a replay in their order; where its beginning is lost, they begin at any number."""
        if self._replay is None:
            return
        for number, payload in self._replay(first):
            if until is not None and number >= until:
                break
            if self._next is None or number == self._next:
                self._apply(number, payload)
            elif number > self._next:
                break

    def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        try:
            events = read_batch(payload)
        except ValueError as error:
            self.num_unreadable += 1
            if _is_logged(self.num_unreadable):
                what = "a batch of KV events of %s cannot be read (number %d): %s"
                _log.warning(what, self._url, self.num_unreadable, error)
            self._blocks.clear(self._url)
            return
        for event in events:
            self._blocks.apply(self._url, event)


def _is_logged(number: int) -> bool:
    """Whether the log has this occurrence: the 1st, 2nd, 4th, 8th, ... An engine may send any number of batches."""
    return number & (number - 1) == 0
