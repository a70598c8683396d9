"""The place of one request under the limits of its target."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gateway.dataplane.attempts.front import AttemptFront
from gateway.dataplane.context.snapshot import RouteTarget
from gateway.limits.limiter import Grant, Limiter, Pending
from gateway.protocol.errors import GatewayError


class Admission:
    """Requests a grant from the limiter, and holds it; see `gateway.limits.limiter.PendingRequest`.

    A request that waits is decided later: `decided` gets the error of a refusal, or None.
    """

    __slots__ = ("_decided", "_front", "_grant", "_limiter", "_route_target", "session")

    def __init__(
        self,
        front: AttemptFront,
        route_target: RouteTarget,
        session: str | None,
        limiter: Limiter,
        decided: Callable[[GatewayError | None], None],
    ) -> None:
        self._front = front
        self._route_target = route_target
        self.session = session
        self._limiter = limiter
        self._decided = decided
        self._grant: Grant | Pending | None = None

    @property
    def is_waiting(self) -> bool:
        return self._grant is not None and self._grant.is_waiting

    def start(self, now: float) -> None:
        """Request a grant, unless there is one, or wait for it.

        Raises: GatewayError where a limit is reached.
        """
        if self._grant is None:
            self._grant = self._limiter.admit(self._route_target.limits, self, now)

    def resume(self) -> None:
        """Take the place of a request that was admitted before: it counts no second time."""
        self._grant = self._limiter.go_on(self._route_target.limits, self, monotonic())

    def charge(self) -> None:
        """Count one more request of a stream under the same grant.

        Raises: GatewayError where a limit is reached.
        """
        if isinstance(self._grant, Grant):
            self._grant.again(monotonic())

    def end(self) -> None:
        """Give the place back."""
        grant, self._grant = self._grant, None
        if grant is not None:
            grant.end(self._front.used_tokens(grant.tokens) if grant.tokens is not None else 0)

    # What the limiter needs

    @property
    def route(self) -> str:
        return self._route_target.spec.route

    def field(self, name: bytes) -> bytes | None:
        return self._front.field(name)

    def expected_tokens(self) -> int:
        return self._front.expected_tokens()

    def admitted(self, grant: Grant) -> None:
        self._grant = grant
        self._decided(None)

    def refused(self, error: GatewayError) -> None:
        self._grant = None
        self._decided(error)
