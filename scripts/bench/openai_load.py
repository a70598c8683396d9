"""The load on language models: closed-loop connections in a process of its own, or wrk for whole answers.

Started as `python -m bench.openai_load JSON` with an `OpenAILoad`; prints a `LoadResult` as JSON, or exits with an
error message and status 1 at the first wrong answer.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvloop

from bench import messages, mixed, mixed_chats
from bench.closed_loop import WARMUP_SECONDS, Tally, answer_spec, closed_loop
from bench.load import LoadSpec
from bench.openai_connections import AnswerReader, Chats, Streams
from bench.openai_messages import EXCHANGES, MIXED
from bench.processes import BenchError
from bench.window import LoadResult, Window, run_module
from bench.wrk import ask_by_wrk


@dataclass(frozen=True, slots=True)
class OpenAILoad(LoadSpec):
    """One run of load. The exchange is one of `openai_messages`."""

    right: str | None = None  # the right answer, in ASCII, if it is whole


def request_maker(spec: OpenAILoad) -> Callable[[], bytes]:
    if spec.exchange == MIXED:
        return mixed.in_turn(mixed_chats.requests())
    exchange = EXCHANGES[spec.exchange]
    if spec.unique_heads:
        return messages.unique_requests(exchange)
    request = exchange.request()
    return lambda: request


def right_answer(spec: OpenAILoad) -> bytes:
    assert spec.right is not None
    return spec.right.encode("ascii")


async def many_at_a_time(spec: OpenAILoad) -> LoadResult:
    """Keep every connection busy with one request at a time; counting starts once all streams have begun."""
    loop = asyncio.get_running_loop()
    next_request = request_maker(spec)
    streams: list[Streams] = []

    async def open_one(tally: Tally) -> None:
        if spec.right is None:
            _, protocol = await loop.create_connection(lambda: Streams(tally, next_request), "127.0.0.1", spec.port)
            streams.append(protocol)
        else:
            right = right_answer(spec)
            await loop.create_connection(lambda: Chats(tally, next_request, right), "127.0.0.1", spec.port)

    def have_begun() -> bool:
        return all(each.has_begun for each in streams)

    return await closed_loop(open_one, spec.connections, spec.seconds, spec.groups, have_begun)


def one_after_another(spec: OpenAILoad) -> LoadResult:
    """Send one request at a time on one blocking socket: the result is the latency of the path alone."""
    with socket.create_connection(("127.0.0.1", spec.port), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send_for(spec, connection, WARMUP_SECONDS)
        window = Window(spec.groups)
        latencies_us = _send_for(spec, connection, spec.seconds)
        return window.close(len(latencies_us), latencies_us)


def _send_for(spec: OpenAILoad, connection: socket.socket, seconds: float) -> list[float]:
    next_request, reader, right = request_maker(spec), AnswerReader(), right_answer(spec)
    latencies_us = []
    ends_at = time.perf_counter() + seconds
    while (sent_at := time.perf_counter()) < ends_at:
        connection.sendall(next_request())
        answer, ended = b"", False
        while not ended:
            data = connection.recv(65_536)
            if not data:
                raise BenchError("the connection was closed within an answer")
            payload, ended = reader.feed(data)
            answer += payload
        latencies_us.append((time.perf_counter() - sent_at) * 1e6)
        if answer != right:
            raise BenchError(f"an answer of {len(answer)} bytes is not the right one: {answer[:200]!r}")
    return latencies_us


def run_load(spec: OpenAILoad, cores: Sequence[int] | None, use_wrk: bool) -> LoadResult:
    """Run the load in a process of its own and wait for its result.

    Raises: BenchError.
    """
    if use_wrk and spec.right is not None and not spec.serial and spec.exchange != MIXED:
        return ask_by_wrk(EXCHANGES[spec.exchange], spec, cores, right_answer(spec))
    return run_module("bench.openai_load", spec, spec.seconds, cores)


def run(spec: OpenAILoad) -> LoadResult:
    return one_after_another(spec) if spec.serial else uvloop.run(many_at_a_time(spec))


if __name__ == "__main__":
    answer_spec(OpenAILoad, run)
