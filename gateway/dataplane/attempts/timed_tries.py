"""The tries of a REST request, whose client may ask what became of its time."""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.attempts.tries import Tries
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.server_timing import Timing
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.head import Field


class TimedTries(Tries):
    """Tries with a request; where nobody asks for the timing there is none."""

    __slots__ = ("_request",)

    _request: Request

    def _timing(self) -> Timing | None:
        self._request = self._request.timed(self._started_at)
        return self._request.timing

    def _timing_fields(self, now: float) -> list[Field]:
        timing, lane, endpoint = self._timing(), self._lane, self._endpoint
        if timing is None:
            return []
        is_named = lane is not None and endpoint is not None and lane.reply_lines
        url = endpoint.url if endpoint is not None and is_named else ""
        return [timing.field(self._waited, self._sent_at, now, url)]

    def _try_again(self, error: GatewayError) -> None:
        if (timing := self._timing()) is not None:
            timing.failed(self._sent_at, monotonic())
        super()._try_again(error)
