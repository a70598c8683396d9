"""One attempt to reach an engine, and what attempts need from the request they are made for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gateway.config.engine_specs import EngineSpec
from gateway.dataplane.context.snapshot import Snapshot
from gateway.observability.arms import Meter
from gateway.observability.metrics import RequestSeries
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.canonical import TokenUsage
from gateway.protocol.request_urgency import NO_URGENCY, Urgency
from gateway.routing.decision import Facts
from gateway.sessions.sequence_log import Input
from gateway.upstream.endpoint import Endpoint

Carrier = TypeVar("Carrier")  # what an attempt is sent on: a connection, a stream, a task


@dataclass(slots=True, eq=False)
class Attempt(Generic[Carrier]):
    """One attempt, counted at its endpoint while `is_open`.

    `sent_on` is what carries it: None until something of the request may have reached the endpoint, and again once the
    carrier is released. `sent_at` is of `time.monotonic`, 0 until then. The front sets both. `begun_at` is when its
    endpoint was chosen.
    """

    endpoint: Endpoint
    series: RequestSeries
    begun_at: float = 0.0
    sent_on: Carrier | None = None
    sent_at: float = 0.0
    is_open: bool = True


class HedgedRequest(Protocol):
    """The attempts of the request, as the hedge sees them."""

    def hedge_answered(self, status: int) -> bool:
        """A reply to the hedge has begun, with this HTTP status. True: its front gets it; False: nobody does."""

    def hedge_failed(self, error: GatewayError) -> None:
        """The hedge has ended without a reply."""


class Hedge(ABC):
    """Carries the second attempt until its reply begins, or it takes over."""

    __slots__ = ("attempt", "attempts")

    def __init__(self, attempts: HedgedRequest, attempt: Attempt[Any]) -> None:
        self.attempts = attempts
        self.attempt = attempt

    @property
    def is_sent(self) -> bool:
        return self.attempt.sent_on is not None

    @abstractmethod
    def start(self, now: float) -> None:
        """Send the request to the attempt's endpoint, now or once there is a connection.

        Raises: GatewayError where too many requests wait for a connection.
        """

    @abstractmethod
    def take_over(self) -> None:
        """The first attempt is over: the front gets the reply to this one."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop it, whatever its stage; nothing more is reported of it."""


class AttemptFront(ABC):
    """What attempts need from the request they are made for."""

    __slots__ = ()

    # Whether the status stands at the head of the reply (HTTP): then no later failure changes it. gRPC's comes last.
    status_comes_first = True
    # Whether it may wait for an engine with `overload:`. A stream lasts for as long as its client likes.
    may_queue = True

    # Sending

    @abstractmethod
    def start_attempt(self, attempt: Attempt[Any], now: float) -> None:
        """Send the request to the attempt's endpoint, now or once there is a connection.

        Raises: GatewayError where too many requests wait for a connection.
        """

    @abstractmethod
    def cancel_attempt(self, attempt: Attempt[Any]) -> None:
        """Stop an open attempt, whatever its stage, and release its carrier; nothing more is reported of it."""

    @abstractmethod
    def attempts_failed(self, error: GatewayError, status: int) -> None:
        """No engine answers, or not to the end: answer the client. The failure is counted, as this HTTP status."""

    # May it be sent again

    def is_replayable(self) -> bool:
        """Whether the whole request is still at hand, as far as it has come."""
        return False

    def is_idempotent(self, declared: str) -> bool:
        """Whether engines may get it twice; `declared` is the engine's `retry.idempotent`."""
        return False

    def waits_for_client(self) -> bool:
        """Whether the endpoint cannot answer yet, since the client has to send more of the request."""
        return False

    # Hedging; asked by `HedgedAttempts` alone

    def may_hedge(self) -> bool:
        """Whether another endpoint may get the whole request while the first one has it."""
        return False

    def hedge(self, attempts: HedgedRequest, attempt: Attempt[Any]) -> Hedge:
        """What carries a second attempt."""
        raise NotImplementedError

    def sequence_input(self) -> Input | None:
        """The request as it is replayed to another endpoint; None where not all of it is at hand."""
        return None

    # What placing and limiting it takes

    @abstractmethod
    def field(self, name: bytes) -> bytes | None:
        """The first header field of this name, in lower case."""

    def prompt(self) -> bytes | memoryview | None:
        """What a language model reads of the request; None where that is unknown."""
        return None

    def urgency(self) -> Urgency:
        """What it says of its priority and its time."""
        return NO_URGENCY

    def expected_tokens(self) -> int:
        """Tokens of a language model that it may use; 0 where it is no generation."""
        return 0

    def used_tokens(self, expected: int) -> int:
        """Tokens that it has used; `expected` were."""
        return 0

    def usage(self) -> TokenUsage | None:
        """The same as far as prices tell tokens apart; None where it is no generation, or has failed."""
        return None

    def model(self) -> ModelName | None:
        """The model and version that the client names; None where that is unknown."""
        return None

    def facts(self) -> tuple[Snapshot, Facts] | None:
        """The request as the rules see it; None where that is unknown."""
        return None

    # How it is counted

    @property
    @abstractmethod
    def is_inference(self) -> bool:
        """Whether limits and experiments count it: a question about a model they do not."""

    @abstractmethod
    def count_failed(self, meter: Meter, error: GatewayError) -> None:
        """Report a failure to the meter of an experiment's arm."""

    def count_abandoned(self, meter: Meter, reason: str) -> None:
        """Report a request that ended early to the meter of an experiment's arm."""
        meter.kept_out(reason)


class _EndedFront(AttemptFront):
    """Takes the place of the front after the end."""

    __slots__ = ()

    def start_attempt(self, attempt: Attempt[Any], now: float) -> None: ...

    def cancel_attempt(self, attempt: Attempt[Any]) -> None: ...

    def attempts_failed(self, error: GatewayError, status: int) -> None: ...

    def field(self, name: bytes) -> bytes | None: ...

    is_inference = False

    def count_failed(self, meter: Meter, error: GatewayError) -> None: ...


ENDED = _EndedFront()


def deadline_of(spec: EngineSpec, since: float, now: float, expires_at: float) -> float:
    """When an attempt fails for want of a reply, 0 for never: by the engine's timeout for the request, which runs
    `since`, by its timeout for one attempt, and by the client's deadline."""
    at = since + spec.timeout if spec.timeout else 0.0
    if spec.try_timeout and (not at or now + spec.try_timeout < at):
        at = now + spec.try_timeout
    return expires_at if expires_at and (not at or expires_at < at) else at
