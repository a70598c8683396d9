"""Traffic watched at one gateway: its live tail, for who listens at the admin API, and recordings of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.admin.event_feed import Feed
from gateway.config.settings import Settings
from gateway.supervision.decision_feed import DecisionFeed, FeedSubscription
from gateway.supervision.recordings import Recordings
from gateway.supervision.worker_pool import WorkerPool

# Of each worker, for people who read along.
_TAIL_RATE = 10.0


class Watching:
    """Workers tell as much as somebody wants, and nothing while nobody does."""

    def __init__(self, settings: Settings, workforce: WorkerPool, feed: Feed, folder: Path | None) -> None:
        """Recordings lie in `folder`; None: there is no place for any."""
        redacted = tuple(name.lower() for name in settings.redact)
        self._feed = feed
        self.decisions = DecisionFeed(
            lambda watch: workforce.watch(watch, self.decisions.hear), workers=settings.workers, redacted=redacted
        )
        self.recordings = Recordings(folder, self.decisions)
        self._tail = FeedSubscription(self._publish, _TAIL_RATE)
        feed.on_decisions_wanted(self._want_tail)

    def __repr__(self) -> str:
        return f"<Watching {self.decisions!r}, {self.recordings!r}>"

    def close(self) -> None:
        self.recordings.close()

    def _want_tail(self, is_wanted: bool) -> None:
        if is_wanted:
            self.decisions.add(self._tail)
        else:
            self.decisions.remove(self._tail)

    def _publish(self, decisions: list[dict[str, Any]], skipped: int) -> None:
        for decision in decisions:
            self._feed.publish("decision", decision)
