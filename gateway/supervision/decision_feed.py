"""Decisions of all workers, for all who watch: the live tail, and recordings. Workers tell as much as the most curious
of them wants; the others get their share of that."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from gateway.control.messages import Watch

Json = dict[str, Any]

NO_RECEIVER = Watch(0)


@dataclass(eq=False, slots=True)
class FeedSubscription:
    """What one of them wants: a share of the requests, `rate` a second at most of each worker; `take` gets them, and
    how many were left out for the rate."""

    take: Callable[[list[Json], int], None]
    rate: float
    share: float = 1.0
    with_body_facts: bool = False
    allowance: float = 0.0
    seen_at: float = 0.0


class DecisionFeed:
    """Who watches one gateway; `watch` tells its workers."""

    def __init__(self, watch: Callable[[Watch], None], *, workers: int, redacted: tuple[str, ...] = ()) -> None:
        self._watch = watch
        self._workers = max(1, workers)
        self._redacted = redacted
        self._wishes: list[FeedSubscription] = []
        self._all = NO_RECEIVER  # what the workers tell now

    def __repr__(self) -> str:
        return f"<DecisionFeed {len(self._wishes)} watch>"

    def add(self, wish: FeedSubscription) -> None:
        wish.allowance, wish.seen_at = wish.rate * self._workers, monotonic()
        self._wishes.append(wish)
        self._tell()

    def remove(self, wish: FeedSubscription) -> None:
        if wish in self._wishes:
            self._wishes.remove(wish)
            self._tell()

    def hear(self, decisions: list[Json], skipped: int) -> None:
        """A worker has told some."""
        for wish in list(self._wishes):
            share = wish.share / self._all.share if self._all.share else 1.0
            taken = decisions if share >= 1 else [each for each in decisions if random.random() < share]
            left_out = skipped if share >= 1 else 0
            if wish.rate < self._all.rate:
                allowed = self._allowed(wish, len(taken))
                left_out += len(taken) - allowed
                taken = taken[:allowed]
            if taken or left_out:
                wish.take(taken, left_out)

    def _allowed(self, wish: FeedSubscription, number: int) -> int:
        """How many of these are within its rate."""
        now, most = monotonic(), wish.rate * self._workers
        wish.allowance = min(most, wish.allowance + (now - wish.seen_at) * most)
        wish.seen_at = now
        allowed = min(number, int(wish.allowance))
        wish.allowance -= allowed
        return allowed

    def _tell(self) -> None:
        wanted = NO_RECEIVER
        if self._wishes:
            wanted = Watch(
                max(wish.rate for wish in self._wishes),
                any(wish.with_body_facts for wish in self._wishes),
                max(wish.share for wish in self._wishes),
                self._redacted,
            )
        if wanted != self._all:
            self._all = wanted
            self._watch(wanted)
