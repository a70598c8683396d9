"""The gateway answers REST requests as Triton does.

Each call runs twice, against Triton and through the gateway, and the two answers are compared. What the gateway adds on
purpose has tests of its own at the end: headers, its own name in /v2, replies to HEAD.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.demo.triton import TritonProcess
from tests.conformance.client_calls import CALLS
from tests.conformance.conversations import CONVERSATIONS
from tests.conformance.readiness import hears_of
from tests.conformance.region_codes import without_codes
from tests.conformance.requests import ADDER, ADDER_JSON, REQUESTS, Request
from tests.support.servers import GatewayProcess
from tests.support.wire import Reply, Wire, send

pytestmark = pytest.mark.triton

# Headers with a meaning for clients. Date, server and connection handling belong to each server.
COMPARED_HEADERS = ("content-type", "content-encoding", "accept-encoding", "inference-header-content-length")

# The gateway's own refusals have the content type JSON; Triton sends the same bytes as text/plain.
OWN_REFUSALS = (b'{"error":"Not Found"}', b'{"error":"Method Not Allowed"}')

UNREADABLE_REGISTRATION = (
    b'{"error":"failed to parse the shared memory register request: unexpected end of data: line 1 column 2 (char 1)"}'
)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_request(request_: Request, triton: TritonProcess, gateway: GatewayProcess) -> None:
    """A request gets the same status, body bytes and headers from both."""
    hears_of(triton, gateway)
    direct, through = (
        send(port, request_.method, request_.path, request_.body, request_.headers)
        for port in (triton.http_port, gateway.http_port)
    )
    assert direct.status == request_.status, direct
    if request_ is REQUESTS["shared memory, malformed"]:  # the gateway reads it, and Triton's parser says 500
        assert (through.status, through.body) == (400, UNREADABLE_REGISTRATION)
        return
    assert comparable(through) == comparable(direct)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_client(call: Callable[[str], Any], triton: TritonProcess, gateway: GatewayProcess) -> None:
    """Triton's own client gets the same results from both."""
    hears_of(triton, gateway)
    assert call(f"127.0.0.1:{gateway.http_port}") == call(f"127.0.0.1:{triton.http_port}")


def comparable(reply: Reply) -> tuple[int, dict[str, str | None], bytes]:
    headers = {name: reply.headers.get(name) for name in COMPARED_HEADERS}
    if reply.body in OWN_REFUSALS:
        headers["content-type"] = "application/json"
    return reply.status, headers, without_codes(reply.body)


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.__name__)
def test_conversation(
    conversation: Callable[[Wire], list[Reply]], triton: TritonProcess, gateway: GatewayProcess
) -> None:
    """An exchange on one connection gives the same replies from both, byte by byte."""
    with Wire(triton.http_port) as wire:
        direct = conversation(wire)
    with Wire(gateway.http_port) as wire:
        through = conversation(wire)
    assert [comparable(reply) for reply in through] == [comparable(reply) for reply in direct]


def test_head_is_get_without_the_body(gateway: GatewayProcess) -> None:
    """HEAD answers as GET without the body, for load balancers' probes; Triton answers 405."""
    with Wire(gateway.http_port) as wire:
        wire.send(b"HEAD /v2/models/adder HTTP/1.1\r\nHost: t\r\n\r\n")
        head = wire.read_reply("HEAD")
        wire.send(b"GET /v2/models/adder HTTP/1.1\r\nHost: t\r\n\r\n")
        whole = wire.read_reply("GET")
        wire.send(f"HEAD {ADDER} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
        refused = wire.read_reply("HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, str(len(whole.body)), b"")
    assert (refused.status, refused.headers["allow"], refused.body) == (405, "POST", b"")


def test_events_arrive_one_by_one(gateway: GatewayProcess) -> None:
    """A stream's events reach the client as the model sends them, not when the stream ends."""
    body = b'{"text_input":"x","count":2,"interval_seconds":0.5}'
    head = f"POST /v2/models/repeater/generate_stream HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
    with Wire(gateway.http_port) as wire:
        wire.send(head.encode() + body)
        while not wire.read_line().startswith(b"data: "):
            pass
        first = time.monotonic()
        while not wire.read_line().startswith(b"data: "):
            pass
    assert time.monotonic() - first > 0.25


def test_server_metadata(triton: TritonProcess, gateway: GatewayProcess) -> None:
    """/v2 has Triton's name, version and extensions."""
    direct, through = (json.loads(send(port, "GET", "/v2").body) for port in (triton.http_port, gateway.http_port))
    assert through == direct


@pytest.mark.parametrize("name", ["infer", "generate", "generate_stream", "failing model", "unknown model"])
def test_replies_say_where_they_come_from(name: str, gateway: GatewayProcess) -> None:
    """Every routed reply names its route and engine, and carries a request id."""
    request = REQUESTS[name]
    reply = send(gateway.http_port, request.method, request.path, request.body)
    assert reply.headers["x-pointsman-route"] == "everything"
    assert reply.headers["x-pointsman-engine"] == "triton"
    assert reply.headers["x-request-id"]


def test_request_id_is_kept(gateway: GatewayProcess) -> None:
    """A client's own request id comes back."""
    reply = send(gateway.http_port, "POST", ADDER, ADDER_JSON, {"x-request-id": "client-7"})
    assert reply.headers["x-request-id"] == "client-7"
