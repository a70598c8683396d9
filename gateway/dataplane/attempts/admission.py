"""The place of one request under the limits and budgets of its target."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from gateway.dataplane.attempts.front import Attempt, AttemptFront
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.route_target import RouteTarget
from gateway.limits.budget import BudgetAccount
from gateway.limits.limiter import Grant, Limiter, Pending
from gateway.protocol.errors import GatewayError


class Admission:
    """Requests a grant from the limiter, and holds it; see `gateway.limits.limiter.PendingRequest`.

    A request that waits is decided later: `decided` gets the error of a refusal, or None.
    """

    __slots__ = ("_decided", "_front", "_grant", "_limiter", "_route_target", "seconds_queued", "session")

    def __init__(
        self,
        front: AttemptFront,
        route_target: RouteTarget,
        session: str | None,
        plane: DataPlane,
        decided: Callable[[GatewayError | None], None],
    ) -> None:
        self._front = front
        self._route_target = route_target
        self.session = session
        self._limiter: Limiter = plane.limiter
        self._decided = decided
        self._grant: Grant | Pending | None = None
        self.seconds_queued = 0.0  # at an engine: never

    @property
    def is_waiting(self) -> bool:
        return self._grant is not None and self._grant.is_waiting

    def start(self, now: float) -> None:
        """Request a grant, unless there is one, or wait for it.

        Raises: GatewayError where a limit is reached.
        """
        if self._grant is None:
            if self._route_target.was_admitted:
                self.resume()
            else:
                self._grant = self._limiter.admit(self._route_target.limits, self, now)

    def resume(self) -> None:
        """Take the place of a request that was admitted before: it counts no second time."""
        if self._grant is None:
            self._grant = self._limiter.go_on(self._route_target.limits, self, monotonic())

    def replied(self, attempt: Attempt[Any], status: int, now: float) -> None:
        """The reply to an attempt has begun."""

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


class BudgetedAdmission(Admission):
    """The same of a target with budgets: it is refused where one is exhausted, counts as a request once it is admitted,
    and with its tokens and their price when it ends."""

    __slots__ = ("_accounts", "_budgets", "_era", "_is_counted")

    def __init__(
        self,
        front: AttemptFront,
        route_target: RouteTarget,
        session: str | None,
        plane: DataPlane,
        decided: Callable[[GatewayError | None], None],
    ) -> None:
        super().__init__(front, route_target, session, plane, decided)
        self._budgets = plane.budgets
        self._accounts: list[BudgetAccount] = []  # of the target's budgets
        self._era = -1
        self._is_counted = False

    def start(self, now: float) -> None:
        if self._is_counted:
            return
        if self._route_target.was_admitted:
            self.resume()
            return
        if not self._accounts:  # else it has waited for its limits
            self._accounts = self._budgets.check(self._route_target.budgets, self)
            self._era = self._budgets.era
        if self._route_target.limits:
            super().start(now)
            if self.is_waiting:
                return
        self._is_counted = True
        self._count_request()

    def resume(self) -> None:
        self._is_counted = True
        if self._route_target.limits:
            super().resume()

    def charge(self) -> None:
        self._accounts = self._budgets.check(self._route_target.budgets, self)
        self._era = self._budgets.era
        if self._route_target.limits:
            super().charge()
        self._count_request()

    def end(self) -> None:
        if self._grant is not None:
            super().end()
        used = self._front.usage() if self._is_counted else None
        if used is not None:
            cost = self._budgets.prices.cost(self._model_name(), used)
            self._count(0, used.prompt + used.completion, cost)

    def _count_request(self) -> None:
        prices = self._budgets.prices
        self._count(1, 0, prices.cost_of_request(self._model_name()) if prices.are_for_requests else 0)

    def _count(self, requests: int, tokens: int, spend: int) -> None:
        budgets, of_target = self._budgets, self._route_target.budgets
        if self._era != budgets.era:  # a window has ended, or there are other rules
            self._accounts, self._era = budgets.accounts_of(of_target, self), budgets.era
        budgets.count(of_target, self._accounts, requests, tokens, spend)

    def _model_name(self) -> str:
        """The name by which prices know the model: the engine's, where the rules tell it."""
        return self._route_target.spec.model or (self._front.model() or ("",))[0]
