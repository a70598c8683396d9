"""What the control process and its workers share: the messages between them, and the event loop that both run on.

They travel as length-prefixed pickles over a socket pair that only a parent and its own child hold. A worker whose
control process is gone keeps serving with what it knows.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.comparison.report import RouteReport
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.observability.active_request import LiveRequest
from gateway.observability.metrics import CountersSnapshot
from gateway.protocol.engine_load import Load
from gateway.protocol.feedback import Rating
from gateway.protocol.readiness import Readiness
from gateway.redis.address import RedisAddress

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Start:
    """The first message a worker gets. `listener_fds` are listening sockets that it inherited; where there are none it
    binds the settings' ports itself, with SO_REUSEPORT. `redis` is None where there is none."""

    settings: Settings
    rules: RulesSpec
    number: int
    health: Mapping[tuple[str, str], Readiness] = field(default_factory=dict)
    models: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    listener_fds: tuple[int, ...] = ()
    redis: RedisAddress | None = None
    drained: frozenset[tuple[str, str]] = frozenset()
    log_level: str = "info"
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    captures: str = ""  # the socket of the parity process
    watch: Watch | None = None


@dataclass(frozen=True, slots=True)
class UseRules:
    """Swap to this snapshot of the rules."""

    rules: RulesSpec
    number: int


@dataclass(frozen=True, slots=True)
class SetHealth:
    """What the probes found, by engine and endpoint url. Endpoints without a condition have not been probed, those
    without models do not tell them; models None: as they were. `loads` are those told since the last such message,
    None: it tells none any more.
    """

    health: Mapping[tuple[str, str], Readiness]
    models: Mapping[tuple[str, str], frozenset[str]] | None = None
    loads: Mapping[tuple[str, str], Load | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetDrained:
    """These endpoints, by engine and url, get no new work; all others do."""

    endpoints: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SetWeights:
    """Of each experiment, the arms' shares of its units; experiments that are not named use those of the rules. `runs`
    number the runs that have set them: sessions keep arms that they got by the same."""

    weights: Mapping[str, Mapping[str, float]]
    runs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop accepting, let requests in flight finish within the settings' limit, exit."""


@dataclass(frozen=True, slots=True)
class AskSnapshot:
    """Send your counters."""

    token: int


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """Log from this level on: debug, info, warning or error."""

    level: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Tell a share of the requests that end, so many a second at most; a rate of 0: none any more. `with_body_facts`:
    also what rules may ask of their bodies, which are kept until then. `redacted` headers and parameters (lower case)
    are told without their values."""

    rate: float
    with_body_facts: bool = False
    share: float = 1.0
    redacted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskRequests:
    """Send the requests under way, the oldest ones, so many at most."""

    token: int
    limit: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End the requests of this id."""

    token: int
    id: str


@dataclass(frozen=True, slots=True)
class ActiveRequests:
    """From a worker: requests under way."""

    token: int
    requests: list[LiveRequest]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """From a worker: how many requests it has ended."""

    token: int
    count: int


@dataclass(frozen=True, slots=True)
class UseReports:
    """To the parity process: go on with these, which the one before has made, by route."""

    reports: Mapping[str, RouteReport]


@dataclass(frozen=True, slots=True)
class AskReports:
    """To the parity process: send your reports."""

    token: int


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """To the parity process: begin this route's report anew."""

    route: str


@dataclass(frozen=True, slots=True)
class Reports:
    """From the parity process: its reports, by route."""

    token: int
    reports: Mapping[str, RouteReport]


@dataclass(frozen=True, slots=True)
class TakeFeedback:
    """To a worker: count this, if you have answered the request. From a worker that has not: ask the others."""

    token: int
    rating: Rating


@dataclass(frozen=True, slots=True)
class FeedbackCounted:
    """Whether somebody has; to whoever asked."""

    token: int
    is_counted: bool


@dataclass(frozen=True, slots=True)
class Decisions:
    """From a worker: requests that have ended, and how many more there were than the rate allowed."""

    decisions: list[dict[str, Any]]
    skipped: int


@dataclass(frozen=True, slots=True)
class Serving:
    """From a worker: it accepts connections."""

    pid: int


@dataclass(frozen=True, slots=True)
class Counters:
    """From a worker: its counters; `token` is 0 for the one it sends by itself before it exits."""

    token: int
    snapshot: CountersSnapshot


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """From a worker: it cannot start or use what it was sent, and why."""

    message: str


Orders = UseRules | SetHealth | SetDrained | SetLogLevel | SetWeights | Watch
ToWorker = Start | Orders | Drain | AskSnapshot | AskRequests | CancelRequest | TakeFeedback | FeedbackCounted
Answer = Counters | ActiveRequests | Cancelled | FeedbackCounted  # to what was asked with a token
OfParity = UseReports | AskReports | ForgetReport | Reports
Message = ToWorker | Serving | WorkerFailed | Decisions | Answer | OfParity


def encode(message: Message) -> bytes:
    """A message as it goes over the socket pair."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of both processes: uvloop where there is one, else None for asyncio's own."""
    try:
        import uvloop
    except ImportError:  # plain asyncio serves the same, at a higher price
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
