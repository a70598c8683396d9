"""A budget for retries: a fleet that fails must not be asked twice for everything."""

from __future__ import annotations

from gateway.config.specs import RetrySpec

_WINDOW_SECONDS = 10.0


class RetryBudget:
    """Allows a share of the requests of the last ten seconds, and a few in any case.

    Counts are kept in the present and the past window; the past one fades as the present one fills. A window ends when
    somebody asks, which may be long after its ten seconds: of its requests, the share of ten seconds becomes the past.
    Times are seconds of any monotonic clock, handed in by the caller.
    """

    __slots__ = ("_past_requests", "_past_retries", "_retries", "_spec", "_window_start", "requests")

    def __init__(self, spec: RetrySpec, now: float) -> None:
        self._spec = spec
        self._window_start = now
        self.requests = 0.0  # added to by the hot path, one a request
        self._retries = 0.0
        self._past_requests = 0.0
        self._past_retries = 0.0

    def take(self, now: float) -> bool:
        """Whether one more retry is allowed now; counts it if so."""
        elapsed = now - self._window_start
        if elapsed >= _WINDOW_SECONDS:
            self._past_requests = self.requests * _WINDOW_SECONDS / elapsed
            self._past_retries = self._retries * max(0.0, 2 - elapsed / _WINDOW_SECONDS)  # all were in its first ten
            self.requests = self._retries = 0.0
            self._window_start = now
            elapsed = 0.0
        fading = 1 - elapsed / _WINDOW_SECONDS
        requests = self.requests + self._past_requests * fading
        retries = self._retries + self._past_retries * fading
        if retries >= self._spec.budget_floor + self._spec.budget * requests:
            return False
        self._retries += 1
        return True
