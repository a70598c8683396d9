"""The place of one request at an engine with `overload:`, after its limits have admitted it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from gateway.dataplane.attempts.admission import Admission, BudgetedAdmission
from gateway.dataplane.attempts.front import Attempt, AttemptFront, Carrier
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.route_target import RouteTarget
from gateway.net.timer_wheel import Slot
from gateway.protocol.errors import GatewayError
from gateway.protocol.request_urgency import PATIENCE_FIELDS, TIMEOUT_FIELD, Urgency, read_seconds
from gateway.upstream.engine_admission import EngineAdmission

Decided = Callable[[GatewayError | None], None]


class DeadlineHolder(Protocol):
    """A request; `expires_at` is its client's deadline, 0 where it has none."""

    expires_at: float
    started_at: float


class QueuedAdmission:
    """Admits a request at once where the engine has room; else the request waits in the engine's queue.

    `limits` is the admission by limits and budgets, None where there are none.
    """

    __slots__ = (
        *("_admission", "_admitted_at", "_decided", "_front", "_plane", "_request", "_route_target", "_slot"),
        *("level", "limits", "queued_at", "seconds_queued", "tenant", "wait_until"),
    )

    def __init__(
        self,
        front: AttemptFront,
        route_target: RouteTarget,
        admission: EngineAdmission,
        limits: Admission | None,
        plane: DataPlane,
        request: DeadlineHolder,
        decided: Decided,
    ) -> None:
        self._front = front
        self._route_target = route_target
        self._admission = admission
        self.limits = limits
        self._plane = plane
        self._request = request
        self._decided = decided
        self._admitted_at = 0.0  # 0: it is not, or has ended
        self._slot: Slot | None = None  # of its timeout in the queue
        self.level = 0
        self.tenant = b""
        self.queued_at = 0.0  # 0: it is not in the queue
        self.seconds_queued = 0.0
        self.wait_until = 0.0

    @property
    def is_waiting(self) -> bool:
        return bool(self.queued_at) or (self.limits is not None and self.limits.is_waiting)

    @property
    def is_uploading(self) -> bool:
        return self._front.waits_for_client()

    def start(self, now: float) -> None:
        """Take a place, unless there is one, or wait for it.

        Raises: GatewayError where a limit is reached, or the engine is overloaded.
        """
        if self.limits is not None:
            self.limits.start(now)
            if self.limits.is_waiting:
                return
        if self._admitted_at or self.queued_at:
            return
        request, admission = self._request, self._admission
        timeout = self._front.field(TIMEOUT_FIELD)
        if timeout is not None and (seconds := read_seconds(timeout)):
            at = request.started_at + seconds
            request.expires_at = min(at, request.expires_at or at)
        shed = self._plane.loop_lag.num_shed
        if not shed and admission.has_room(now):
            admission.enter(self, now)
            self._admitted_at = now
            return
        urgency = self._front.urgency()
        classes = self._plane.snapshot.classes
        if classes.names != admission.class_names:  # the rules have changed meanwhile
            self.level = len(admission.class_names) - 1
        else:
            self.level = classes.of_request(self._front.field, urgency)
        if shed:
            if self.level >= len(admission.class_names) - shed:
                raise admission.shed(self)
            if admission.has_room(now):
                admission.enter(self, now)
                self._admitted_at = now
                return
        self.tenant = self._front.field(classes.tenant_field) or b""
        self.wait_until = self._wait_until(urgency, now)
        self.queued_at = now
        try:
            admission.wait(self, now)
        except GatewayError:
            self.queued_at = 0.0
            raise
        self._slot = self._plane.wheel.add(self, self.wait_until)
        if admission.may_serve(now):
            self._plane.loop.call_soon(admission.serve, now)

    def _wait_until(self, urgency: Urgency, now: float) -> float:
        """Until when it may wait, so that there is time left for the engine."""
        request, front, admission = self._request, self._front, self._admission
        ends = [now + admission.spec.queue.max_wait]
        if request.expires_at:
            ends.append(request.expires_at - admission.seconds_each)
        if urgency.queue_seconds:
            ends.append(request.started_at + urgency.queue_seconds)
        for name in PATIENCE_FIELDS:
            patience = front.field(name)
            if patience is not None and (seconds := read_seconds(patience)):
                ends.append(request.started_at + seconds - admission.seconds_each)
                break
        return min(ends)

    def replied(self, attempt: Attempt[Carrier], status: int, now: float) -> None:
        """The reply to an attempt has begun. A failure is fast, and says nothing of the engine's speed."""
        if status < 500 and status != 429:
            self._admission.replied(attempt.endpoint, now - attempt.sent_at, now)

    def resume(self) -> None:
        """Take the place of a request that was admitted before."""
        if self.limits is not None:
            self.limits.resume()
        self._admitted_at = now = monotonic()
        self._admission.enter(self, now)

    def charge(self) -> None:
        """Count one more request of a stream under the same grant.

        Raises: GatewayError where a limit is reached.
        """
        if self.limits is not None:
            self.limits.charge()

    def end(self) -> None:
        """Give the place back."""
        if self.limits is not None:
            self.limits.end()
        if self.queued_at:
            self._leave_queue()
            self._admission.leave_queue(self)
        elif self._admitted_at:
            admission, now = self._admission, monotonic()
            admission.leave(self, self._admitted_at, now)
            self._admitted_at = 0.0
            if admission.has_waiting:
                self._plane.loop.call_soon(admission.serve, now)  # the end of this request is no part of another's

    def _leave_queue(self) -> None:
        self.queued_at = 0.0
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None

    # What the queue reports

    def admit(self) -> None:
        self._admitted_at = now = monotonic()
        self.seconds_queued = now - self.queued_at
        self._leave_queue()
        self._decided(None)

    def refuse(self, error: GatewayError) -> None:
        self._leave_queue()
        self._decided(error)

    def expired(self) -> None:
        self._slot = None
        error = self._admission.wait_ended(self)
        self.refuse(error)


AnyAdmission = Admission | QueuedAdmission


def admission_of(
    front: AttemptFront,
    route_target: RouteTarget,
    session: str | None,
    plane: DataPlane,
    request: DeadlineHolder,
    decided: Decided,
) -> AnyAdmission | None:
    """The admission of an inference for a target with limits, budgets or an engine with `overload:`."""
    limits: Admission | None = None
    if route_target.limits or route_target.budgets:
        kind = BudgetedAdmission if route_target.budgets else Admission
        limits = kind(front, route_target, session, plane, decided)
    overload = route_target.engine.overload
    if overload is None or not front.may_queue:
        return limits
    return QueuedAdmission(front, route_target, overload, limits, plane, request, decided)
