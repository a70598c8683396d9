"""What an experiment counts of a request for which several handlers work, one after the other: as of one request."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.route_target import RouteTarget
from gateway.observability.arms import Meter
from gateway.protocol.engine_load import read_energy
from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.canonical import TokenUsage
from gateway.wire.http1.head import Field


class GenerationUsage(NamedTuple):
    """What one handler has brought of a generation; times are of `time.monotonic`, 0 where it was not streamed."""

    used: TokenUsage
    first_token_at: float
    ended_at: float


class OutcomeRecorder:
    """Reports to the arm's meter once; to none where the request is not measured."""

    def __init__(self, route_target: RouteTarget, request: Request, started_at: float) -> None:
        self._route_target = route_target
        self._meter: Meter | None = route_target.meter if request.plan.is_inference else None
        self._id = request.plan.rater + (request.id or b"")
        self._started_at = started_at
        self._size = 0
        self._crossed = False
        self._generated: list[GenerationUsage] = []

    def body_received(self, size: int) -> None:
        self._size = size

    def goes_on(self, route_target: RouteTarget) -> None:
        """Another target's engine answers from here."""
        self._crossed = self._crossed or route_target.key is not self._route_target.key

    def add(self, generated: GenerationUsage | None) -> None:
        if generated is not None:
            self._generated.append(generated)

    def reply_started(self, fields: list[Field]) -> None:
        """An engine's reply has begun, with these fields."""
        if self._meter is not None and not self._crossed:
            count_energy(self._meter, next((value for name, value in fields if name == ENERGY_FIELD), None))

    def answered(self, status: int) -> None:
        meter = self._take()
        if meter is None:
            return
        if self._generated and status == 200:
            first, last = self._generated[0], self._generated[-1]
            output = sum(generated.used.completion for generated in self._generated)
            first_token = first.first_token_at - self._started_at if first.first_token_at else None
            per_token = (last.ended_at - first.first_token_at) / (output - 1) if first_token and output > 1 else None
            meter.generated(first.used.prompt, output, first_token, per_token)
        meter.answered(self._id, status, self._size, monotonic() - self._started_at)

    def failed(self, error: GatewayError) -> None:
        meter = self._take()
        if meter is not None:
            meter.failed(self._id, error.kind, error.status.http >= 500, self._size)

    def gone(self, reason: str) -> None:
        meter = self._take()
        if meter is not None:
            meter.kept_out(reason)

    def _take(self) -> Meter | None:
        """The meter, once: none where another arm's engine has had a part."""
        meter, self._meter = self._meter, None
        if meter is not None and self._crossed:
            meter.crossed()
            return None
        return meter


ENERGY_FIELD = b"endpoint-load-metrics"


def count_energy(meter: Meter, value: bytes | None) -> None:
    """Count what an engine says that a reply has taken, if it does."""
    joules = read_energy(value) if value is not None else None
    if joules is not None:
        meter.used_energy(joules)
