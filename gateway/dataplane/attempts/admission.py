"""The place of one request under the limits of its lane."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from gateway.dataplane.context.snapshot import Lane
from gateway.limits.limiter import Limiter
from gateway.limits.pending import Grant, Pending
from gateway.protocol.errors import GatewayError


class AdmittedRequest(Protocol):
    """The request, as its admission sees it."""

    lane: Lane
    session: str | None

    def field(self, name: bytes) -> bytes | None:
        """The first header field of this name, in lower case."""
        ...

    def expected_tokens(self) -> int:
        """Tokens of a language model that it may use; 0 where it is no generation."""
        ...

    def continue_admitted(self) -> None:
        """The limits admit it, after it has waited."""
        ...

    def fail(self, error: GatewayError) -> None:
        """The limits refuse it, after it has waited."""
        ...


class Admission:
    """Asks the limiter for one request, and holds its grant; see `gateway.limits.pending.PendingRequest`."""

    __slots__ = ("_grant", "_limiter", "_request")

    def __init__(self, request: AdmittedRequest, limiter: Limiter) -> None:
        self._request = request
        self._limiter = limiter
        self._grant: Grant | Pending | None = None

    @property
    def is_waiting(self) -> bool:
        return self._grant is not None and self._grant.is_waiting

    def start(self, now: float) -> None:
        """Request a grant, or wait for one.

        Raises: GatewayError where a limit is reached.
        """
        self._grant = self._limiter.admit(self._request.lane.limits, self, now)

    def resume(self) -> None:
        """Take the place of a request that was admitted before: it counts no second time."""
        self._grant = self._limiter.go_on(self._request.lane.limits, self, monotonic())

    def charge(self) -> None:
        """Count one more request under the same grant, as a stream brings them.

        Raises: GatewayError where a limit is reached.
        """
        if isinstance(self._grant, Grant):
            self._grant.again(monotonic())

    def end(self, used_tokens: Callable[[int], int]) -> None:
        """Give the place back; `used_tokens` returns what was used, given what was expected."""
        grant, self._grant = self._grant, None
        if grant is not None:
            grant.end(used_tokens(grant.tokens) if grant.tokens is not None else 0)

    # What the limiter needs

    @property
    def route(self) -> str:
        return self._request.lane.target.route

    @property
    def session(self) -> str | None:
        return self._request.session

    def field(self, name: bytes) -> bytes | None:
        return self._request.field(name)

    def expected_tokens(self) -> int:
        return self._request.expected_tokens()

    def admitted(self, grant: Grant) -> None:
        self._grant = grant
        self._request.continue_admitted()

    def refused(self, error: GatewayError) -> None:
        self._grant = None
        self._request.fail(error)
