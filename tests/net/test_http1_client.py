"""One connection to an engine: where replies start and end, and whether the connection is reused."""

import asyncio
import itertools
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.http1_client import Http1ClientConnection
from gateway.protocol.errors import ErrorKind
from tests.dataplane.stage import run, until
from tests.net.stage import OK, REQUEST, Act, Caller, Script, engine, pool_of

CLOSE, RESET, WAIT = Act.CLOSE, Act.RESET, Act.WAIT
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n"

# The engine's script; the status and the body delivered; whether the connection is reused.
REPLIES: dict[str, tuple[Script, int, bytes, bool]] = {
    "a length": ((OK,), 200, b"ok", True),
    "a length of nothing": ((b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",), 200, b"", True),
    "byte by byte": ([bytes([byte]) for byte in OK], 200, b"ok", True),
    "no content": ((b"HTTP/1.1 204 No Content\r\n\r\n",), 204, b"", True),
    "not modified": ((b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",), 304, b"", True),
    "an error": ((b"HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\n!",), 500, b"!", True),
    "chunks, as they are": ((CHUNKED, b"3\r\nabc\r\n", b"0\r\n\r\n"), 200, b"3\r\nabc\r\n0\r\n\r\n", True),
    "chunks with the head": ((CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",), 200, b"3\r\nabc\r\n0\r\n\r\n", True),
    "no chunk at all": ((CHUNKED + b"0\r\n\r\n",), 200, b"0\r\n\r\n", True),
    "extensions and trailers stay behind": (
        (CHUNKED + b"3;x=y\r\nabc\r\n0;last\r\nX-Sum: 1\r\n\r\n",),
        200,
        b"3\r\nabc\r\n0\r\n\r\n",
        True,
    ),
    "until it closes": ((UNTIL_CLOSE, b"abc", b"de", CLOSE), 200, b"abcde", False),
    "until it closes, with nothing": ((UNTIL_CLOSE, CLOSE), 200, b"", False),
    "an interim reply before": ((b"HTTP/1.1 100 Continue\r\n\r\n", OK), 200, b"ok", True),
    "interim replies in one piece": (
        (b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK,),
        200,
        b"ok",
        True,
    ),
    "many interim replies": ((b"HTTP/1.1 102 Processing\r\n\r\n" * 5000 + OK,), 200, b"ok", True),
    "it asks to close": (
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",),
        200,
        b"ok",
        False,
    ),
    "HTTP/1.0": ((b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",), 200, b"ok", False),
    "HTTP/1.0 that is kept alive": (
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",),
        200,
        b"ok",
        True,
    ),
    # Bytes behind a reply answer no request: they are dropped and the connection is closed.
    "longer than its length": ((OK + b"more",), 200, b"ok", False),
    "longer than its length, in the next piece": (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", b"k and more"),
        200,
        b"ok",
        False,
    ),
    "two replies": ((OK + OK,), 200, b"ok", False),
    "a body where there is none": ((b"HTTP/1.1 204 No Content\r\n\r\nbody",), 204, b"", False),
    "something behind the last chunk": (
        (CHUNKED + b"3\r\nabc\r\n0\r\n\r\nmore",),
        200,
        b"3\r\nabc\r\n0\r\n\r\n",
        False,
    ),
}


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("script, status, body, is_kept", REPLIES.values(), ids=REPLIES)
def test_replies(script: Script, status: int, body: bytes, is_kept: bool, plain: bool) -> None:
    """A reply is delivered to its end and no further; its connection is reused unless something forbids it."""

    async def scene() -> None:
        async with engine(*script) as it:
            pool = pool_of(it)
            caller = await Caller().ask(pool).over()
            assert (caller.error, caller.has_ended) == (None, True)
            assert caller.head is not None
            assert (caller.head.status, caller.body) == (status, body)
            await until(lambda: pool.num_busy == 0)
            assert pool.size == is_kept
            it.script = (OK,)
            assert (await Caller().ask(pool).over()).body == b"ok"
            assert len(it.writers) == (1 if is_kept else 2)
            pool.close_idle()

    run(scene(), plain=plain)


# The engine's script; the kind of the failure, and a part of its message.
RESETS, SPEAKS_BADLY = ErrorKind.UPSTREAM_RESET, ErrorKind.UPSTREAM_PROTOCOL
FAILURES: dict[str, tuple[Script, ErrorKind, str]] = {
    "it closes without a word": ((CLOSE,), RESETS, "closed the connection before it answered"),
    "it resets without a word": ((RESET,), RESETS, "closed the connection before it answered"),
    "it closes after an interim reply": (
        (b"HTTP/1.1 100 Continue\r\n\r\n", CLOSE),
        RESETS,
        "closed the connection before it answered",
    ),
    "it closes in its head": ((b"HTTP/1.1 200 OK\r\nContent-Le", CLOSE), RESETS, "before it answered"),
    "it closes in its body": (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", CLOSE),
        RESETS,
        "closed the connection in the middle of its reply",
    ),
    "it closes in a chunk": ((CHUNKED + b"5\r\nabc", CLOSE), RESETS, "in the middle of its reply"),
    "it closes between chunks": ((CHUNKED, b"3\r\nabc\r\n", CLOSE), RESETS, "in the middle of its reply"),
    "it closes before the last CRLF": ((CHUNKED, b"3\r\nabc\r\n0\r\n", CLOSE), RESETS, "in the middle of its reply"),
    "no HTTP": ((b"220 mail.example ESMTP\r\n\r\n",), SPEAKS_BADLY, "the engine's reply is malformed: Expected HTTP/"),
    "an empty line before": ((b"\r\n" + OK,), SPEAKS_BADLY, "its status line is not of HTTP/1.1"),
    "two lengths": (
        (b"HTTP/1.1 200 OK\r\n" + b"Content-Length: 2\r\n" * 2 + b"\r\nok",),
        SPEAKS_BADLY,
        "Content-Length",
    ),
    "another protocol": (
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",),
        SPEAKS_BADLY,
        "it changes the protocol, which nobody asked for",
    ),
    "garbage after an interim reply": ((b"HTTP/1.1 100 Continue\r\n\r\nhello\r\n\r\n",), SPEAKS_BADLY, "malformed"),
    "a bad chunk": ((CHUNKED + b"x\r\n",), SPEAKS_BADLY, "a chunk's size is not a hexadecimal number"),
    "a bad chunk later on": ((CHUNKED, b"3\r\nabc\r\n", b"x\r\n"), SPEAKS_BADLY, "a chunk's size is not"),
    "a head without end": (
        (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 300_000),
        SPEAKS_BADLY,
        "its head is longer than 262144 bytes",
    ),
}


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("script, kind, message", FAILURES.values(), ids=FAILURES)
def test_failures(script: Script, kind: ErrorKind, message: str, plain: bool) -> None:
    """A failure names whether the engine closed the connection or sent malformed HTTP, and the connection is closed."""

    async def scene() -> None:
        async with engine(*script) as it:
            pool = pool_of(it)
            caller = await Caller().ask(pool).over()
            assert caller.error is not None and not caller.has_ended
            assert caller.error.kind is kind
            assert message in caller.error.message
            await until(lambda: pool.size == 0)

    run(scene(), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_a_reset_is_no_end(plain: bool) -> None:
    """A body that ends with the connection is complete after an orderly close, but not after a reset."""

    async def scene() -> None:
        async with engine(UNTIL_CLOSE + b"abc", WAIT, RESET) as it:
            caller = Caller().ask(pool_of(it))
            await until(lambda: caller.body == b"abc")
            it.go_on.set()
            await caller.over()
            assert caller.error is not None
            assert caller.error.kind is RESETS

    run(scene(), plain=plain)


def test_a_head_asked_for_has_no_body() -> None:
    """The reply to HEAD ends with its head, whatever length the head declares."""

    async def scene() -> None:
        async with engine(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n") as it:
            pool = pool_of(it)
            for _ in range(2):
                caller = await Caller(without_body=True).ask(pool).over()
                assert (caller.has_ended, caller.body) == (True, b"")
            it.script = (CHUNKED,)
            assert (await Caller(without_body=True).ask(pool).over()).has_ended
            assert len(it.writers) == 1
            pool.close_idle()

    run(scene())


def test_a_receiver_may_want_the_payload() -> None:
    """A receiver that reframes or reads a body gets the data of its chunks only."""

    async def scene() -> None:
        async with engine(CHUNKED, b"3\r\nabc\r\n", b"2;x=y\r\nde\r\n0\r\n\r\n") as it:
            pool = pool_of(it)
            caller = await Caller(wants_payload=True).ask(pool).over()
            assert (caller.body, pool.num_busy) == (b"abcde", 0)
            pool.close_idle()

    run(scene())


def test_an_answer_before_the_request_is_sent() -> None:
    """A connection with a partly sent request cannot take another one: it is closed after the reply."""

    async def scene() -> None:
        async with engine() as it:
            pool = pool_of(it)
            caller = await Caller(is_sent=False).ask(pool).over()
            assert caller.body == b"ok"
            await until(lambda: pool.size == 0)

    run(scene())


def test_what_nobody_asked_for() -> None:
    """Bytes on an idle connection close it, and the next request gets a new connection."""

    async def scene() -> None:
        async with engine() as it:
            pool = pool_of(it)
            await Caller().ask(pool).over()
            it.writers[0].write(OK)
            await until(lambda: pool.size == 0)
            assert (await Caller().ask(pool).over()).body == b"ok"
            assert len(it.writers) == 2
            pool.close_idle()

    run(scene())


def test_an_engine_that_speaks_first() -> None:
    """Bytes that arrive before the request count as the beginning of the reply: bytes that are not HTTP fail the
    request."""

    async def scene() -> None:
        async with engine(greeting=b"220 mail.example ESMTP\r\n\r\n") as it:
            pool = pool_of(it)
            caller = await Caller().ask(pool).over()
            assert caller.error is not None
            assert caller.error.kind in (SPEAKS_BADLY, RESETS)  # they may even arrive before a request is sent
            await until(lambda: pool.size == 0)

    run(scene())


def test_an_abandoned_reply() -> None:
    """Abandoning a reply closes the connection at once, and the caller gets no further events."""

    async def scene() -> None:
        async with engine(CHUNKED + b"3\r\nabc\r\n", WAIT) as it:
            pool = pool_of(it)
            caller = Caller().ask(pool)
            await until(lambda: caller.body == b"3\r\nabc\r\n")
            assert caller.connection is not None
            caller.connection.abandon()
            await until(lambda: pool.size == 0)
            assert (caller.has_ended, caller.error) == (False, None)
            it.go_on.set()
            await until(lambda: it.num_open == 0)

    run(scene())


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_a_slow_caller_stops_the_engine(plain: bool) -> None:
    """While the reply is paused the gateway reads nothing, so the engine's buffers fill; no data is lost."""
    body = bytes(range(256)) * 4096 * 16

    async def scene() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        async with engine(head, WAIT, body) as it:
            pool = pool_of(it)
            caller = Caller().ask(pool)
            await until(lambda: caller.head)
            assert caller.connection is not None
            caller.connection.pause_reply()
            it.go_on.set()
            await until(lambda: it.writers[0].transport.get_write_buffer_size() > 0)
            assert caller.body == b""
            caller.connection.resume_reply()
            assert (await caller.over()).body == body
            pool.close_idle()

    run(scene(), plain=plain)


def test_its_repr_tells_its_state() -> None:
    """A connection's repr shows its pool and its state."""

    async def scene() -> None:
        async with engine(WAIT, CHUNKED) as it:
            pool = pool_of(it)
            caller = Caller().ask(pool)
            await until(lambda: caller.connection)
            assert repr(caller.connection).endswith("waiting>")
            it.go_on.set()
            await until(lambda: caller.head)
            assert repr(caller.connection).endswith("serving>")
            it.writers[0].write(b"0\r\n\r\n")
            await caller.over()
            assert repr(caller.connection) == (
                f"<Http1ClientConnection of <Http1Pool 127.0.0.1:{it.port} 1 connections, 1 idle, 0 wait> idle>"
            )
            pool.close_idle()

    run(scene())


class Wire:
    """A transport that records what is written, and the connection's pool, which counts releases."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.released = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def release(self, connection: Http1ClientConnection) -> None:
        self.released += 1

    def discard(self, connection: Http1ClientConnection) -> None: ...


def read(pieces: list[bytes]) -> tuple[Any, ...]:
    """The events that a caller gets for a reply in these pieces, and what becomes of the connection."""

    async def scene() -> tuple[Any, ...]:
        wire, caller = Wire(), Caller(wants_payload=True)
        connection = Http1ClientConnection(wire)
        connection.connection_made(cast(asyncio.Transport, wire))
        caller.connected(connection)
        assert wire.written == REQUEST
        for piece in pieces:
            if not wire.is_closed and not wire.released:
                connection.data_received(piece)
        failed = caller.error is not None
        status = caller.head.status if caller.head and not failed else None  # a failure may precede the head
        return status, b"" if failed else caller.body, caller.has_ended, failed, wire.is_closed, wire.released

    return asyncio.run(scene())


PARTS = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 204 No\r\n"),
        *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"\r\n", b"abc"),
        *(b"3\r\nabc\r\n", b"0\r\n\r\n", b"\n", b"x", b"\x00"),
    ]
)


@pytest.mark.pure_python
@given(st.lists(PARTS, max_size=8), st.lists(st.integers(0, 200), max_size=6))
def test_cuts_do_not_matter(parts: list[bytes], places: list[int]) -> None:
    """A reply yields the same events however it is cut; no bytes raise an exception."""
    whole = b"".join(parts)
    edges = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(edges) if start < end]
    report = [read([whole] if whole else []), read(pieces), read([bytes([byte]) for byte in whole])]
    # A tail that arrives with the end closes the connection; a later one finds it idle and closes it then.
    verdicts = [(*each[:4], each[4] or each[5]) for each in report]
    assert verdicts[0] == verdicts[1] == verdicts[2]
