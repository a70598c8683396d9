"""The load generator: closed-loop connections in a process of its own, on asyncio Protocols and uvloop.

Started as `python -m bench.load JSON` with a `LoadSpec`; prints a `LoadResult` as JSON, or ends with a sentence and
status 1 at the first wrong answer. CPU times of the measured processes are read here, at the very start and end of the
window, so that opening and closing connections is not counted.
"""

import asyncio
import dataclasses
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvloop

from bench import messages
from bench.connections import StreamedAnswers, Tally, WholeAnswers, wrong_head
from bench.messages import EXCHANGES
from bench.processes import SCRIPTS, BenchError, group_cpu_seconds, pinned, raise_file_limit

WARMUP_SECONDS = 0.3

# A run of load that takes this much longer than its window is stuck.
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One run of load."""

    exchange: str  # a key of messages.EXCHANGES
    port: int
    connections: int
    seconds: float
    groups: dict[str, list[int]]  # whose CPU time to read: name -> process ids
    unique_heads: bool = False  # a new x-request-id and traceparent for each request
    serial: bool = False  # one blocking socket without an event loop: the least noise for latency


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What one run saw inside its window. A unit is a request, or a token where the answers are streams."""

    units: int
    seconds: float
    p50_us: float
    p99_us: float
    group_cpu_seconds: dict[str, float]
    loader_cpu_seconds: float | None  # near the window's length the loader itself is the bottleneck; None: not known


class Window:
    """The time between two moments of a run, and the CPU that each group of processes spent in it."""

    def __init__(self, groups: dict[str, list[int]]) -> None:
        self._groups = groups
        self._cpu = group_cpu_seconds(groups)
        self._own_cpu = time.process_time()
        self._opened_at = time.perf_counter()

    def close(self, units: float, latencies_us: list[float]) -> LoadResult:
        cpu = group_cpu_seconds(self._groups)
        return LoadResult(
            units=round(units),
            seconds=time.perf_counter() - self._opened_at,
            p50_us=percentile(latencies_us, 50),
            p99_us=percentile(latencies_us, 99),
            group_cpu_seconds={name: cpu[name] - self._cpu[name] for name in cpu},
            loader_cpu_seconds=time.process_time() - self._own_cpu,
        )


def percentile(values: list[float], percent: float) -> float:
    if not values:
        raise BenchError("no answer came in time")
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def request_maker(spec: LoadSpec) -> Callable[[], bytes]:
    exchange = EXCHANGES[spec.exchange]
    if spec.unique_heads:
        return messages.unique_requests(exchange)
    request = exchange.request()
    return lambda: request


async def closed_loop(spec: LoadSpec) -> LoadResult:
    """Keep every connection busy with one request at a time, and count between two moments."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()

    def fail(message: str) -> None:
        failed.set_exception(BenchError(message))

    tally = Tally(fail)
    exchange = EXCHANGES[spec.exchange]
    protocol = StreamedAnswers if exchange.answer_bytes is None else WholeAnswers
    next_request = request_maker(spec)

    async def until(due: float) -> None:
        await asyncio.wait([failed], timeout=max(0.0, due - loop.time()))

    opened_at = loop.time()
    for index in range(spec.connections):
        await loop.create_connection(lambda: protocol(tally, exchange, next_request), "127.0.0.1", spec.port)
        # Spread the starts over the warm-up, so that streams do not all tick in step.
        await until(opened_at + WARMUP_SECONDS * (index + 1) / spec.connections)

    window, units, first_latency = Window(spec.groups), tally.units, len(tally.latencies_us)
    await until(loop.time() + spec.seconds)
    tally.is_over = True
    if failed.done():
        failed.result()
    return window.close(tally.units - units, tally.latencies_us[first_latency:])


def one_after_another(spec: LoadSpec) -> LoadResult:
    """Send one request at a time on one blocking socket: what remains is the latency of the path."""
    with socket.create_connection(("127.0.0.1", spec.port), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send_for(spec, connection, WARMUP_SECONDS)
        window = Window(spec.groups)
        latencies_us = send_for(spec, connection, spec.seconds)
        return window.close(len(latencies_us), latencies_us)


def send_for(spec: LoadSpec, connection: socket.socket, seconds: float) -> list[float]:
    """The latencies, in microseconds, of the requests that one connection had answered within these seconds."""
    exchange, next_request = EXCHANGES[spec.exchange], request_maker(spec)
    latencies_us = []
    ends_at = time.perf_counter() + seconds
    while (sent_at := time.perf_counter()) < ends_at:
        connection.sendall(next_request())
        answer = b""
        while (end := answer.find(b"\r\n\r\n")) < 0 or len(answer) < end + 4 + (exchange.answer_bytes or 0):
            piece = connection.recv(65_536)
            if not piece:
                raise BenchError("the connection was closed within an answer")
            answer += piece
        latencies_us.append((time.perf_counter() - sent_at) * 1e6)
        if wrong := wrong_head(answer[:end], exchange):
            raise BenchError(wrong)
    return latencies_us


def run_load(spec: LoadSpec, cores: Sequence[int] | None) -> LoadResult:
    """Run the generator in a process of its own and wait for its result."""
    argv = [sys.executable, "-m", "bench.load", json.dumps(dataclasses.asdict(spec))]
    with pinned(cores):
        try:
            done = subprocess.run(
                argv,
                cwd=SCRIPTS,
                capture_output=True,
                text=True,
                timeout=spec.seconds + GRACE_SECONDS,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError("the load generator did not end in time") from error
    if done.returncode:
        raise BenchError(done.stderr.strip() or f"the load generator ended with status {done.returncode}")
    return LoadResult(**json.loads(done.stdout))


def main() -> None:
    spec = LoadSpec(**json.loads(sys.argv[1]))
    raise_file_limit()
    try:
        result = one_after_another(spec) if spec.serial else uvloop.run(closed_loop(spec))
    except (BenchError, OSError) as error:
        sys.exit(str(error))
    print(json.dumps(dataclasses.asdict(result)))


if __name__ == "__main__":
    main()
