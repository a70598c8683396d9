"""W3C Server Timing of one request, for clients that send the field `x-pointsman-timing`.

    server-timing: decide;dur=0.04, wait;dur=0.00, connect;dur=0.31, engine;dur=5.12;desc="http://10.0.0.5:8000"

`decide` is the time of the rules and of the body that they read; `wait` of limits and Redis; `retry` of failed
attempts; `connect` of the wait for a connection; `engine` from there to the reply's first byte. All are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.wire.http1.head import Field

REQUEST_FIELD = b"x-pointsman-timing"
FIELD = b"server-timing"


@dataclass(slots=True)
class Timing:
    """Times of `time.monotonic`, 0 for what has not happened."""

    begun_at: float
    lookup_at: float = 0.0  # of a session, in Redis
    waited: float = 0.0  # seconds, for Redis
    first_requested_at: float = 0.0  # the first attempt, where there is another
    requested_at: float = 0.0  # this attempt, where it waits for a connection

    def failed(self, sent_at: float, now: float) -> None:
        """An attempt has failed; `sent_at` is 0 where nothing was sent."""
        self.first_requested_at = self.first_requested_at or self.requested_at or sent_at or now
        self.requested_at = 0.0

    def field(self, limited: float, sent_at: float, now: float, endpoint: str) -> Field:
        """The field, at the reply's first byte; `limited` are the seconds that limits held the request, `endpoint` is
        left out where it is empty."""
        sent_at = sent_at or now
        requested_at = self.requested_at or sent_at
        first_requested_at = self.first_requested_at or requested_at
        waited = self.waited + limited
        phases = {
            "decide": first_requested_at - self.begun_at - waited,
            "wait": waited,
            "retry": requested_at - first_requested_at,
            "connect": sent_at - requested_at,
            "engine": now - sent_at,
        }
        entries = [f"{name};dur={max(seconds, 0.0) * 1e3:.3f}" for name, seconds in phases.items()]
        if endpoint:
            entries[-1] += f';desc="{endpoint}"'
        return FIELD, ", ".join(entries).encode("ascii", "replace")
