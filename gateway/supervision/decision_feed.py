"""Decisions of all workers for the live tail and recordings. Workers report what the most demanding subscription needs;
the others get their share of that."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from gateway.control.messages import Watch

Json = dict[str, Any]

OFF = Watch(0)


@dataclass(eq=False, slots=True)
class FeedSubscription:
    """A share of the requests, at most `rate` a second of each worker; `take` gets their decisions, and the number left
    out because of the rate."""

    take: Callable[[list[Json], int], None]
    rate: float
    share: float = 1.0
    with_body_facts: bool = False
    allowance: float = 0.0
    seen_at: float = 0.0


class DecisionFeed:
    """The subscriptions of one gateway; `watch` sets what its workers report."""

    def __init__(self, watch: Callable[[Watch], None], *, workers: int, redacted: tuple[str, ...] = ()) -> None:
        self._watch = watch
        self._workers = max(1, workers)
        self._redacted = redacted
        self._subscriptions: list[FeedSubscription] = []
        self._current = OFF  # what the workers report

    def add(self, subscription: FeedSubscription) -> None:
        subscription.allowance, subscription.seen_at = subscription.rate * self._workers, monotonic()
        self._subscriptions.append(subscription)
        self._update()

    def remove(self, subscription: FeedSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._update()

    def receive(self, decisions: list[Json], skipped: int) -> None:
        """Pass a worker's decisions on."""
        for subscription in list(self._subscriptions):
            share = subscription.share / self._current.share if self._current.share else 1.0
            taken = decisions if share >= 1 else [each for each in decisions if random.random() < share]
            left_out = skipped if share >= 1 else 0
            if subscription.rate < self._current.rate:
                allowed = self._allowed(subscription, len(taken))
                left_out += len(taken) - allowed
                taken = taken[:allowed]
            if taken or left_out:
                subscription.take(taken, left_out)

    def _allowed(self, subscription: FeedSubscription, number: int) -> int:
        """How many of these are within its rate."""
        now, most = monotonic(), subscription.rate * self._workers
        subscription.allowance = min(most, subscription.allowance + (now - subscription.seen_at) * most)
        subscription.seen_at = now
        allowed = min(number, int(subscription.allowance))
        subscription.allowance -= allowed
        return allowed

    def _update(self) -> None:
        needed = OFF
        if self._subscriptions:
            needed = Watch(
                max(each.rate for each in self._subscriptions),
                any(each.with_body_facts for each in self._subscriptions),
                max(each.share for each in self._subscriptions),
                self._redacted,
            )
        if needed != self._current:
            self._current = needed
            self._watch(needed)
