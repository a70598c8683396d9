"""A REST client's connection, by the bytes sent and received, with the test's transport and clock."""

import asyncio
import gc
import json

import pytest

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode
from engines.host.client_limits import ClientLimits
from engines.host.rest.app import RestApp
from engines.host.rest.server import MAX_HEAD_BYTES, RestServer
from tests.engines.host.fake_service import FakeService

BODY = json.dumps(
    {
        "inputs": [
            {"name": "a", "datatype": "INT32", "shape": [1, 1], "data": [1]},
            {"name": "b", "datatype": "INT32", "shape": [1, 1], "data": [2]},
        ]
    }
).encode()
SLEEP = json.dumps({"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["z"]}]}).encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"


def post(body, *fields, model="adder", version=b"1.1", operation="infer"):
    path = f"/v2/models/{model}/{operation}".encode()
    head = b"POST %b HTTP/%b\r\ncontent-length: %d\r\n" % (path, version, len(body))
    return head + b"".join(b"%b\r\n" % field for field in fields) + b"\r\n" + body


CHUNKED = post(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")


class Transport:
    """A transport that accepts all data and records it in `written`."""

    def __init__(self):
        self.written = b""
        self.is_reading = True
        self.closed = self.ended = False
        self.unsent = 0

    def get_extra_info(self, name):
        return None

    def set_write_buffer_limits(self, high=None):
        pass

    def write(self, data):
        assert not self.closed
        self.written += data

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def get_write_buffer_size(self):
        return self.unsent

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.ended = True

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True


class Stage:
    """One connection to the application over a fake service."""

    def __init__(self, **limits):
        self.service = FakeService()
        self.limits = ClientLimits(**limits)
        self.connection = RestServer(RestApp(self.service, self.limits), self.limits).new_connection()
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    async def send(self, *pieces):
        """The bytes written until the connection is idle."""
        for piece in pieces:
            self.connection.data_received(piece)
            await self.settle()
        return self.take_written()

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)

    def take_written(self):
        written, self.transport.written = self.transport.written, b""
        return written


def on_stage(play, **limits):
    async def run():
        return await play(Stage(**limits))

    return asyncio.run(run())


def sent(*pieces, **limits):
    """The reply to these pieces on a new connection, and whether it closes."""

    async def play(stage):
        written = await stage.send(*pieces)
        return written, stage.transport.closed or stage.transport.ended

    return on_stage(play, **limits)


@pytest.mark.parametrize(
    "pieces",
    [
        [post(BODY)],
        [post(BODY)[:10], post(BODY)[10:]],
        [post(BODY)[: -len(BODY)], BODY[:7], BODY[7:]],
        [b"\r\n" + post(BODY)],
        [post(BODY, b"host: a")],
        [post(BODY).replace(b"content-length: %d" % len(BODY), b"Content-Length:%d  " % len(BODY))],
        [CHUNKED, b"%x\r\n" % len(BODY), BODY, b"\r\n0\r\n\r\n"],
    ],
)
def test_an_infer_however_it_is_cut(pieces):
    """The reply is complete however the request is cut, and the connection stays open. A missing Host header is
    accepted."""
    written, closes = sent(*pieces)
    head, _, body = written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ")
    assert json.loads(body)["outputs"][0]["data"] == [3]
    assert not closes


def test_requests_that_come_together_are_answered_in_their_order():
    """An infer request waits for an earlier one, and a control request waits for both."""

    async def play(stage):
        assert await stage.send(post(SLEEP, model="sleeper") + post(BODY) + LIVE) == b""
        stage.service.sleeping.pop().fail_cancelled()
        return (await stage.send(b"")).split(b"HTTP/1.1 ")[1:]

    answers = on_stage(play)
    assert [answer[:3] for answer in answers] == [b"400", b"200", b"200"]
    assert b'"sum"' in answers[1]


@pytest.mark.parametrize(
    ("request_bytes", "status", "text"),
    [
        (b"nonsense\r\n\r\n", b"400", b"malformed request"),
        (b"GET / HTTP/1.1\n\n", b"400", b"a line ends with a bare LF"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES, b"431", b"too many or too long headers"),
        (post(BODY, b"content-length: 1"), b"400", b"Duplicate Content-Length"),
        (CHUNKED + b"zz\r\n", b"400", b"chunk"),
    ],
)
def test_what_cannot_be_read_is_answered_and_the_connection_closes(request_bytes, status, text):
    """The connection closes, because the start of the next request is unknown."""
    written, closes = sent(request_bytes)
    assert written.startswith(b"HTTP/1.1 " + status)
    assert text in written
    assert closes


@pytest.mark.parametrize(
    ("request_bytes", "ending", "closes"),
    [
        (post(BODY, b"connection: close"), b"connection: close\r\n\r\n", True),
        (post(BODY, version=b"1.0"), b"connection: close\r\n\r\n", True),
        (post(BODY, b"connection: keep-alive", version=b"1.0"), b"connection: keep-alive\r\n\r\n", False),
        (post(BODY[:5], model="nope"), b"\r\n\r\n", False),
    ],
)
def test_how_the_connection_goes_on(request_bytes, ending, closes):
    """The client's headers decide whether the connection stays open; an error does not close it."""
    written, does_close = sent(request_bytes)
    assert ending in written
    assert (b"connection: " in written) == (b"connection: " in ending)
    assert does_close is closes


def test_a_head_without_its_body():
    """HEAD has the fields of GET."""
    written, _ = sent(LIVE.replace(b"GET", b"HEAD") + LIVE)
    assert written.count(b"HTTP/1.1 ") == 2


def test_leave_to_send_the_body():
    """A client with Expect gets 100 where the body is read, else the reply."""

    async def play(stage):
        head, body = post(BODY, b"expect: 100-continue").split(b"\r\n\r\n")
        leave = await stage.send(head + b"\r\n\r\n")
        return leave, await stage.send(body)

    leave, answer = on_stage(play)
    assert leave == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.startswith(b"HTTP/1.1 200 OK")
    written, closes = sent(post(b"x" * 100, b"expect: 100-continue")[:-100], max_body_bytes=10)
    assert (written[:12], closes) == (b"HTTP/1.1 400", True)
    assert b"exceeds the maximum allowed input size of 10 bytes" in written


def test_what_is_left_of_a_body_that_no_one_needs_is_read_past():
    """After an oversized body the next request on the connection is answered."""
    rest = b"x" * 1000
    written, closes = sent(post(rest)[:-400], rest[-400:] + LIVE, max_body_bytes=999)
    assert [answer[:3] for answer in written.split(b"HTTP/1.1 ")[1:]] == [b"400", b"200"]
    assert not closes


def test_a_length_beside_chunks_does_not_count():
    """A chunked request with a content-length is answered, and what follows on the connection is no request."""
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    both = CHUNKED.replace(b"transfer-encoding", b"content-length: 5\r\ntransfer-encoding")
    written, closes = sent(both + chunks + LIVE)
    assert [reply[:3] for reply in written.split(b"HTTP/1.1 ")[1:]] == [b"200"]
    assert b"connection: close" in written and closes


@pytest.mark.parametrize(
    "fields",
    [
        b"content-length: 5\r\ncontent-length: 6\r\ntransfer-encoding: chunked",
        b"content-length: -5\r\ntransfer-encoding: chunked",
        b"content-length: 5\r\ntransfer-encoding: gzip, chunked",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
    ],
)
def test_ambiguous_lengths_are_refused(fields):
    """Two lengths, or other codings beside a length, are malformed."""
    written, closes = sent(CHUNKED.replace(b"transfer-encoding: chunked", fields) + b"0\r\n\r\n")
    assert (written[:12], closes) == (b"HTTP/1.1 400", True)


@pytest.mark.parametrize("path", ["infer", "generate"])
def test_a_client_that_sends_nothing_more_is_answered(path):
    """A client that has closed its sending half gets its reply, and then the connection closes."""

    async def play(stage):
        await stage.send(post(SLEEP if path == "infer" else b'{"text_input":"z"}', model="sleeper", operation=path))
        assert stage.connection.eof_received()
        call = stage.service.sleeping.pop()
        assert not call.is_cancelled
        call.fail(EngineError(ErrorCode.UNAVAILABLE, "too tired"))
        await stage.settle()
        written = stage.take_written()
        assert b"too tired" in written and b"connection: close" in written
        assert stage.transport.closed

    on_stage(play)


def test_pipelined_requests_are_answered_after_the_end():
    """Requests that came before the client closed its sending half are all answered."""

    async def play(stage):
        await stage.send(post(SLEEP, model="sleeper") + LIVE)
        assert stage.connection.eof_received()
        stage.service.sleeping.pop().fail(EngineError(ErrorCode.UNAVAILABLE, "too tired"))
        await stage.settle()
        written = stage.take_written()
        assert [reply[:3] for reply in written.split(b"HTTP/1.1 ")[1:]] == [b"503", b"200"]
        stage.connection._end_half_closed()  # as its timer does
        assert stage.transport.closed

    on_stage(play)


def test_a_client_that_has_gone_is_not_awaited_for_long():
    """A close looks like a closed half: without a reply in time the connection ends, which cancels the request."""

    async def play(stage):
        await stage.send(post(SLEEP, model="sleeper"))
        assert stage.connection.eof_received()
        call = stage.service.sleeping.pop()
        while not stage.transport.closed:
            await asyncio.sleep(0)
        stage.connection.connection_lost(None)
        assert call.is_cancelled
        call.fail_cancelled()

    on_stage(play, half_close_seconds=0.0)


@pytest.mark.parametrize("request_bytes", [b"", b"POST /v2", post(BODY)[:-3]])
def test_the_end_of_an_incomplete_request_closes(request_bytes):
    """There is nothing to answer."""

    async def play(stage):
        await stage.send(request_bytes)
        assert not stage.connection.eof_received()

    on_stage(play)


def test_a_client_that_leaves_cancels_its_call():
    """The call is cancelled also if it has no task."""

    async def play(stage):
        await stage.send(post(SLEEP, model="sleeper"))
        call = stage.service.sleeping.pop()
        stage.transport.close()
        stage.connection.connection_lost(None)
        assert call.is_cancelled
        call.fail_cancelled()

    on_stage(play)


@pytest.mark.parametrize(
    ("request_bytes", "seconds", "answer"),
    [
        (b"", 11, b""),
        (b"POST /v2", 11, b"HTTP/1.1 408"),
        (post(BODY)[:-3], 11, b"HTTP/1.1 408"),
        (CHUNKED + b"9", 11, b"HTTP/1.1 408"),
    ],
)
def test_a_client_that_owes_a_request_has_so_long(request_bytes, seconds, answer):
    """After the timeout the client gets a 408 and the connection closes; before it nothing happens."""

    async def play(stage):
        if request_bytes:
            await stage.send(request_bytes)
        stage.connection.sweep(0.0)
        stage.connection.sweep(9.0)
        early = stage.transport.written
        stage.connection.sweep(float(seconds))
        return early, stage.transport.written, stage.transport.closed or stage.transport.ended

    early, written, closes = on_stage(play, receive_seconds=10.0)
    assert (early, closes) == (b"", True)
    assert written[: len(answer)] == answer


def test_a_client_that_is_answered_may_be_silent_for_longer():
    """An idle connection waits longer for the next request, and closes after its own timeout."""

    async def play(stage):
        await stage.send(LIVE)
        stage.connection.sweep(0.0)
        stage.connection.sweep(74.0)
        assert not stage.transport.closed
        stage.connection.sweep(76.0)
        assert stage.transport.closed

    on_stage(play, receive_seconds=10.0)


def test_a_client_that_does_not_read_is_given_up():
    """A client that reads slowly is not closed; its next requests wait."""

    async def play(stage):
        stage.connection.pause_writing()
        assert await stage.send(post(BODY)) == b""
        for now, unsent in ((0.0, 9), (9.0, 9), (11.0, 8), (20.0, 8)):
            stage.transport.unsent = unsent
            stage.connection.sweep(now)
        assert not stage.transport.closed
        stage.connection.sweep(22.0)
        assert stage.transport.closed

    on_stage(play, send_seconds=10.0)


def test_an_inference_leaves_nothing_to_the_garbage_collector():
    """An inference's objects are freed without the garbage collector."""

    async def play(stage):
        await stage.send(post(BODY))
        stage.service.calls.clear()
        stage.service.requests.clear()
        gc.collect()
        before = sum(type(each) is InferenceCall for each in gc.get_objects())
        gc.disable()
        try:
            stage.connection.data_received(post(BODY))
            stage.service.calls.clear()
            stage.service.requests.clear()
            return sum(type(each) is InferenceCall for each in gc.get_objects()) - before
        finally:
            gc.enable()

    assert on_stage(play) == 0
