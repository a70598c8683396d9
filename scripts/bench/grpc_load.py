"""Load at the level of HTTP/2 frames, for what h2load cannot do: calls that differ, and streams of messages.

Started as `python -m bench.grpc_load JSON` with a `GrpcLoad`; prints a `LoadResult` as JSON, or exits with an error
message and status 1 at the first wrong reply: another status than OK, or another length.
"""

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import cast

import uvloop

from bench import grpc_messages as messages
from bench import mixed, mixed_calls
from bench.closed_loop import Tally, answer_spec, closed_loop
from bench.grpc_frames import ReplyFields, SteadyFields, literal
from bench.grpc_messages import EXCHANGES, MIXED, GrpcLoad
from bench.window import LoadResult, run_module
from gateway.wire.http2 import frames
from gateway.wire.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    MAX_WINDOW,
    PING,
    RST_STREAM,
    SETTINGS,
    Setting,
)

# Received before the connection's window is updated; streams receive far less than their windows.
RETURN_BYTES = 1 << 24
MAX_STREAM_ID = 1 << 30


# The header block and the framed message of a connection's next call, in the order in which they are sent.
NextRequest = Callable[[], tuple[bytes, bytes]]


def marked_requests(load: GrpcLoad) -> NextRequest:
    """Calls that differ in their ids and traces alone."""
    exchange = EXCHANGES[load.exchange]
    fields = (
        (":path", exchange.path),
        (":authority", f"127.0.0.1:{load.port}"),
        ("grpc-timeout", f"{messages.DEADLINE_SECONDS}S"),
        *messages.HEADERS,
    )
    # grpc-core does not insert an application's fields into the table; Go's and Java's libraries insert all fields.
    tenant = _encoded(messages.TENANT)
    more = b"" if load.inserts_traces else literal(tenant, is_inserted=False)
    steady = SteadyFields([*map(_encoded, fields), *([tenant] if load.inserts_traces else [])])
    marked, run, serials = exchange.marked(), secrets.token_hex(4), itertools.count(1)

    def next_request() -> tuple[bytes, bytes]:
        mark = f"{run}{next(serials):08x}"
        # POST and http are fields of the static table.
        block = b"\x83\x86" + steady.block() + more
        block += literal(_encoded(messages.trace(mark)), is_inserted=load.inserts_traces)
        steady.num_inserted += load.inserts_traces
        return block, marked(mark)

    return next_request


def mixed_requests(load: GrpcLoad) -> Callable[[int], NextRequest]:
    """Calls of many users; of a connection by its number."""
    next_message, chance = mixed.in_turn(mixed_calls.framed_messages()), random.Random()

    def of_connection(number: int) -> NextRequest:
        write = mixed_calls.block_writer(number, load.port, chance)
        return lambda: (write(), next_message())

    return of_connection


class Client(asyncio.Protocol):
    """One connection with `load.calls` calls at a time.

    Requests are small and few at a time, so they fit into any window; the windows for replies are practically
    unlimited.
    """

    def __init__(self, load: GrpcLoad, tally: Tally, next_request: NextRequest) -> None:
        self._load = load
        self._tally = tally
        self._next_request = next_request
        self._reply_fields = ReplyFields()
        self._buffer = b""
        self._out: list[bytes] = []
        self._next_id = 1
        self._received: dict[int, int] = {}  # body bytes of the reply, by stream
        self._begun_at: dict[int, float] = {}
        self._owed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop registers no such class
        told = {Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW, Setting.ENABLE_PUSH: 0}
        more = MAX_WINDOW - frames.DEFAULT_WINDOW
        self._out += [frames.PREFACE, frames.settings(told), frames.window_update(0, more)]
        for _ in range(self._load.calls):
            self._begin()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.fail(f"a connection was closed under load: {exc or 'end of stream'}")

    # Requests

    def _begin(self) -> None:
        block, message = self._next_request()
        stream_id, self._next_id = self._next_id, self._next_id + 2
        if stream_id > MAX_STREAM_ID:
            self._tally.fail("a connection had as many calls as it can")
            return
        self._received[stream_id] = 0
        self._begun_at[stream_id] = time.perf_counter()
        self._out.append(HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS, stream_id) + block)
        flags = 0 if self._load.is_stream else END_STREAM
        self._out.append(HEAD.pack(len(message) << 8 | DATA, flags, stream_id) + message)

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        at, end = 0, len(data)
        while end - at >= HEAD_BYTES:
            kind, flags, stream_id = HEAD.unpack_from(data, at)
            size, kind = kind >> 8, kind & 0xFF
            start = at + HEAD_BYTES
            if start + size > end:
                break
            at = start + size
            if kind == DATA:
                self._take_data(stream_id, data[start:at], flags)
            elif kind == HEADERS:
                self._take_fields(stream_id, data[start:at], flags)
            elif kind == SETTINGS and not flags & ACK:
                self._out.append(frames.frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._out.append(frames.frame(PING, ACK, 0, data[start:at]))
            elif kind in (RST_STREAM, GOAWAY):
                self._tally.fail(f"{'a stream was reset' if kind == RST_STREAM else 'GOAWAY came'} under load")
        self._buffer = data[at:]
        self._flush()

    def _take_data(self, stream_id: int, data: bytes, flags: int) -> None:
        self._owed += len(data)
        if self._owed >= RETURN_BYTES:
            self._out.append(frames.window_update(0, self._owed))
            self._owed = 0
        if flags & END_STREAM:
            self._tally.fail("a reply ended without trailers")
            return
        seen = self._received[stream_id]
        self._received[stream_id] = seen + len(data)
        if self._load.is_stream:
            self._count_messages(stream_id, seen, data)

    def _count_messages(self, stream_id: int, seen: int, data: bytes) -> None:
        """All messages of a stream have one length, so bytes show where each one begins, however they are cut."""
        tally, size = self._tally, messages.STREAMED_BYTES
        tally.units += (seen + len(data)) // size - seen // size
        at = -seen % size  # where the first message begins
        while at + messages.STREAMED_TIME.stop <= len(data):
            stamp = data[at + messages.STREAMED_TIME.start : at + messages.STREAMED_TIME.stop]
            tally.latencies_us.append(time.monotonic_ns() / 1000 - int(stamp))
            at += size
        if seen + len(data) == size * messages.MESSAGES_PER_STREAM:
            self._out.append(frames.frame(DATA, END_STREAM, stream_id))

    def _take_fields(self, stream_id: int, block: bytes, flags: int) -> None:
        fields = self._reply_fields.read(block)  # also of openings: the table must follow
        if not flags & END_HEADERS:
            self._tally.fail("a reply has more fields than one frame holds")
        elif flags & END_STREAM:
            self._end(stream_id, fields.get(b"grpc-status"), fields.get(b"grpc-message"))

    def _end(self, stream_id: int, status: bytes | None, why: bytes | None) -> None:
        received, begun_at = self._received.pop(stream_id), self._begun_at.pop(stream_id)
        if status != b"0":
            self._tally.fail(f"a call ended with status {_text(status)}: {_text(why)}")
        elif received != self._load.reply_bytes:
            self._tally.fail(f"a reply had {received} bytes instead of {self._load.reply_bytes}")
        elif not self._tally.is_over:
            if not self._load.is_stream:
                self._tally.units += 1
                self._tally.latencies_us.append((time.perf_counter() - begun_at) * 1e6)
            self._begin()


def _encoded(field: tuple[str, str]) -> tuple[bytes, bytes]:
    return field[0].encode(), field[1].encode()


def _text(value: bytes | None) -> str:
    return "(none)" if value is None else value.decode("latin-1")


async def many_at_a_time(load: GrpcLoad) -> LoadResult:
    loop = asyncio.get_running_loop()

    numbers = itertools.count()
    requests_of = mixed_requests(load) if load.exchange == MIXED else lambda _: marked_requests(load)

    async def open_one(tally: Tally) -> None:
        next_request = requests_of(next(numbers))
        await loop.create_connection(lambda: Client(load, tally, next_request), "127.0.0.1", load.port)

    return await closed_loop(open_one, load.connections, load.seconds, load.groups)


def run_frames(load: GrpcLoad, cores: Sequence[int] | None) -> LoadResult:
    """Run this generator in a process of its own and wait for its result."""
    return run_module("bench.grpc_load", load, load.seconds, cores)


def run(load: GrpcLoad) -> LoadResult:
    return uvloop.run(many_at_a_time(load))


if __name__ == "__main__":
    answer_spec(GrpcLoad, run)
