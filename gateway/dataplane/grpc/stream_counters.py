"""What is counted of a leg's messages: as they go, since a stream may go on for days."""

from __future__ import annotations

from gateway.observability.arms import Meter
from gateway.observability.metrics import RequestSeries

# What an engine's `error_message` counts as: it has no status, so whose fault it is nobody can say.
_STREAM_ERROR = "stream_error"


class LegCounts:
    """Tells a series and an experiment's meter what has come since they were told last. What it is given are totals."""

    __slots__ = (
        "_answered",
        "_errors",
        "_measured_bytes",
        "_meter",
        "_received",
        "_request_bytes",
        "_response_bytes",
        "_sent",
    )

    def __init__(self) -> None:
        self._sent = self._received = self._request_bytes = self._response_bytes = 0
        self._meter: Meter | None = None
        self._answered = self._errors = self._measured_bytes = 0

    def __repr__(self) -> str:
        return f"<LegCounts {self._sent} sent, {self._received} received>"

    def count(self, series: RequestSeries, sent: int, received: int, request_bytes: int, response_bytes: int) -> None:
        """Messages and bytes, to the endpoint and from it."""
        series.messages_sent += sent - self._sent
        series.messages_received += received - self._received
        series.request_bytes += request_bytes - self._request_bytes
        series.response_bytes += response_bytes - self._response_bytes
        self._sent, self._received = sent, received
        self._request_bytes, self._response_bytes = request_bytes, response_bytes

    def measure(
        self,
        meter: Meter,
        request_id: bytes,
        num_answered: int,
        num_errors: int,
        size: int,
        seconds: float | None = None,
        num_failed: int = 0,
        failure: str = "",
    ) -> None:
        """What became of an arm's messages: well answered, answered by an error message, or, at the end, not at all,
        for the reason `failure`. `size` are the bytes of all.

        None counts twice: what was told stays told, though of a response that came after others nobody knows whose it
        is where several are under way.
        """
        if self._meter is None:
            self._meter = meter.of_stream()
        left = max(0, num_answered + num_errors + num_failed - self._answered - self._errors)
        errors = min(left, num_errors - self._errors)
        if errors > 0:
            self._meter.streamed(request_id, 0, errors, _STREAM_ERROR, 0, None)
            self._errors += errors
            left -= errors
        failed = min(left, num_failed)
        answered = left - failed
        self._answered += answered
        more_bytes = size - self._measured_bytes
        if answered or failed or (more_bytes and self._answered + self._errors):
            self._meter.streamed(request_id, answered, failed, failure, more_bytes, seconds)
            self._measured_bytes = size
