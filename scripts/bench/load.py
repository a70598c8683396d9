"""The load generator: closed-loop connections in a process of its own, on asyncio Protocols and uvloop.

Started as `python -m bench.load JSON` with a `LoadSpec`; prints a `LoadResult` as JSON, or exits with an error message
and status 1 at the first wrong answer.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvloop

from bench import messages, mixed
from bench.closed_loop import WARMUP_SECONDS, Tally, answer_spec, closed_loop
from bench.connections import StreamedAnswers, WholeAnswers, wrong_head
from bench.messages import EXCHANGES
from bench.processes import BenchError
from bench.window import LoadResult, Window, run_module


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One run of load."""

    exchange: str  # a key of messages.EXCHANGES
    port: int
    connections: int
    seconds: float
    groups: dict[str, list[int]]  # whose CPU time to read: name -> process ids
    unique_heads: bool = False  # a new x-request-id and traceparent for each request
    sessions: int = 0  # the number of sessions that take turns; 0: requests have none
    in_body: bool = False  # whether they are named in the body, or in the head
    serial: bool = False  # one blocking socket without an event loop: the least noise for latency


def request_maker(spec: LoadSpec) -> Callable[[], bytes]:
    if spec.exchange == "mixed":
        return mixed.in_turn(mixed.requests())
    exchange = EXCHANGES[spec.exchange]
    if spec.sessions:
        return messages.session_requests(exchange, spec.sessions, in_body=spec.in_body)
    if spec.unique_heads:
        return messages.unique_requests(exchange)
    request = exchange.request()
    return lambda: request


async def many_at_a_time(spec: LoadSpec) -> LoadResult:
    """Keep every connection busy with one request at a time."""
    loop = asyncio.get_running_loop()
    exchange = EXCHANGES[spec.exchange]
    protocol = StreamedAnswers if exchange.answer_bytes is None else WholeAnswers
    next_request = request_maker(spec)

    async def open_one(tally: Tally) -> None:
        await loop.create_connection(lambda: protocol(tally, exchange, next_request), "127.0.0.1", spec.port)

    return await closed_loop(open_one, spec.connections, spec.seconds, spec.groups)


def one_after_another(spec: LoadSpec) -> LoadResult:
    """Send one request at a time on one blocking socket: the result is the latency of the path alone."""
    with socket.create_connection(("127.0.0.1", spec.port), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send_for(spec, connection, WARMUP_SECONDS)
        window = Window(spec.groups)
        latencies_us = send_for(spec, connection, spec.seconds)
        return window.close(len(latencies_us), latencies_us)


def send_for(spec: LoadSpec, connection: socket.socket, seconds: float) -> list[float]:
    """The latencies, in microseconds, of the requests that one connection completed within these seconds."""
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
    return run_module("bench.load", spec, spec.seconds, cores)


def run(spec: LoadSpec) -> LoadResult:
    return one_after_another(spec) if spec.serial else uvloop.run(many_at_a_time(spec))


if __name__ == "__main__":
    answer_spec(LoadSpec, run)
