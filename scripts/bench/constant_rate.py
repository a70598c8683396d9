"""Load at a constant rate, whatever the replies take: the latency of an open system.

A closed loop sends less while a proxy is slow, and so leaves out the very requests that would have waited. Here
requests are due at random times of a given mean rate (a Poisson process). Latency counts from the time at which a
request was due, also where all connections were busy then (G. Tene 2013, "How NOT to Measure Latency").

Started as `python -m bench.constant_rate JSON` with a `ConstantRate`; prints a `LoadResult` as JSON, or exits with an
error message and status 1 at the first wrong reply.
"""

import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench import mixed, mixed_chats
from bench.closed_loop import answer_spec
from bench.medians import median
from bench.openai_connections import AnswerReader
from bench.processes import BenchError
from bench.samples import Results
from bench.window import LoadResult, Window, run_module

CONNECTIONS = 128
WARMUP_SECONDS = 0.5

# The requests of each kind of load.
REQUESTS: dict[str, Callable[[], list[bytes]]] = {"http": mixed.requests, "chat": mixed_chats.requests}


@dataclass(frozen=True, slots=True)
class ConstantRate:
    """One run of load."""

    kind: str  # a key of REQUESTS
    port: int
    rate: float  # requests per second
    seconds: float
    groups: dict[str, list[int]]  # whose CPU time to read: name -> process ids
    reply_bytes: int  # of a right reply's body


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    reader: AnswerReader = field(default_factory=AnswerReader)
    due: float = 0.0  # of the request under way
    num_received: int = 0  # bytes of its reply's body


def run(spec: ConstantRate) -> LoadResult:
    next_request = mixed.in_turn(REQUESTS[spec.kind]())
    idle = [_connection(spec.port) for _ in range(CONNECTIONS)]
    busy: dict[int, _Connection] = {}
    waiting: deque[float] = deque()  # the times at which requests were due that have no connection yet
    latencies_us: list[float] = []
    window: Window | None = None
    next_due = time.perf_counter()
    opens_at = next_due + WARMUP_SECONDS
    ends_at = opens_at + spec.seconds
    while (now := time.perf_counter()) < ends_at:
        if window is None and now >= opens_at:
            window, latencies_us = Window(spec.groups), []
        while next_due <= now:
            waiting.append(next_due)
            next_due += random.expovariate(spec.rate)
        while waiting and idle:
            connection = idle.pop()
            connection.due = waiting.popleft()
            busy[connection.socket.fileno()] = connection
            connection.socket.sendall(next_request())
        ready, _, _ = select.select(list(busy), [], [], max(0.0, next_due - time.perf_counter()))
        for number in ready:
            connection = busy[number]
            payload, ended = connection.reader.feed(_received(connection.socket))
            connection.num_received += len(payload)
            if ended:
                if connection.num_received != spec.reply_bytes:
                    raise BenchError(f"a reply of {connection.num_received} bytes, {spec.reply_bytes} are right")
                latencies_us.append((time.perf_counter() - connection.due) * 1e6)
                connection.num_received = 0
                idle.append(busy.pop(number))
    assert window is not None
    return window.close(len(latencies_us), latencies_us)


def _connection(port: int) -> _Connection:
    made = socket.create_connection(("127.0.0.1", port), timeout=10)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _Connection(made)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    if not data:
        raise BenchError("a connection was closed under load")
    return data


# The case that measures Envoy's capacity, and the cases at a constant rate: their shares of it, by name.
CAPACITY_CASE = "mixed"
SHARES = {f"rate-{percent}": percent / 100 for percent in (30, 60, 90)}


def capacity(results: Results) -> float:
    """The requests per second of Envoy under the same load in a closed loop, in the same run.

    Raises: BenchError.
    """
    rate = median(results, CAPACITY_CASE, "envoy", lambda sample: sample.units_per_second)
    if rate is None:
        raise BenchError(f"rates are shares of Envoy's: add the case {CAPACITY_CASE} and the proxy envoy")
    return rate


def run_at_rate(spec: ConstantRate, cores: Sequence[int] | None) -> LoadResult:
    """Run this generator in a process of its own and wait for its result."""
    return run_module("bench.constant_rate", spec, spec.seconds + WARMUP_SECONDS, cores)


if __name__ == "__main__":
    answer_spec(ConstantRate, run)
