"""The place of one request at an engine with `overload:`: at once, from the engine's queue, or refused."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gateway.dataplane.context.data_plane import DataPlane
from gateway.epp.interfaces import RequestReader
from gateway.net.timer_wheel import Slot
from gateway.protocol.errors import GatewayError
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine_admission import EngineAdmission

Decided = Callable[[GatewayError | None], None]


class PickAdmission:
    """Admits a request; `decided` is called once for one that has waited."""

    is_uploading = False  # the proxy sends the rest of the body by itself

    def __init__(self, plane: DataPlane, admission: EngineAdmission, reader: RequestReader, decided: Decided) -> None:
        self._plane = plane
        self._admission = admission
        self._reader = reader
        self._decided = decided
        self._admitted_at = 0.0  # 0: it is not, or has ended
        self._slot: Slot | None = None  # of its timeout in the queue
        self.level = 0
        self.tenant = b""
        self.queued_at = 0.0  # 0: it is not in the queue
        self.wait_until = 0.0

    def start(self, now: float) -> bool:
        """Whether the request is admitted; else it waits.

        Raises: GatewayError(OVERLOADED).
        """
        admission, plane = self._admission, self._plane
        num_shed = plane.loop_lag.num_shed
        if not num_shed and admission.has_room(now):
            return self._enter(now)
        classes, urgency = plane.snapshot.classes, self._reader.urgency()
        if classes.names == admission.class_names:
            self.level = classes.of_request(self._reader.field, urgency)
        else:  # the rules have changed meanwhile
            self.level = len(admission.class_names) - 1
        if num_shed:
            if self.level >= len(admission.class_names) - num_shed:
                raise admission.shed(self)
            if admission.has_room(now):
                return self._enter(now)
        self.tenant = self._reader.field(classes.tenant_field) or b""
        self.wait_until = now + min(admission.spec.queue.max_wait, urgency.queue_seconds or float("inf"))
        admission.wait(self, now)
        self.queued_at = now
        self._slot = plane.wheel.add(self, self.wait_until)
        if admission.may_serve(now):
            plane.loop.call_soon(admission.serve, now)
        return False

    def replied(self, endpoint: Endpoint, latency: float, now: float) -> None:
        """A good reply has begun."""
        self._admission.replied(endpoint, latency, now)

    def end(self) -> None:
        """Give the place back, or leave the queue."""
        if self.queued_at:
            self._leave_queue()
            self._admission.leave_queue(self)
        elif self._admitted_at:
            now = monotonic()
            self._admission.leave(self, self._admitted_at, now)
            self._admitted_at = 0.0
            if self._admission.has_waiting:
                self._plane.loop.call_soon(self._admission.serve, now)

    def _enter(self, now: float) -> bool:
        self._admission.enter(self, now)
        self._admitted_at = now
        return True

    def _leave_queue(self) -> None:
        self.queued_at = 0.0
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None

    # What the queue and the timer report

    def admit(self) -> None:
        self._leave_queue()
        self._admitted_at = monotonic()
        self._decided(None)

    def refuse(self, error: GatewayError) -> None:
        self._leave_queue()
        self._decided(error)

    def expired(self) -> None:
        self._slot = None
        self.refuse(self._admission.wait_ended(self))
