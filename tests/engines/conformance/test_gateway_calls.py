"""The requests of the gateway's tests, sent to the host directly: it replies as Triton does.

Requests as bytes, connections with several requests, and all calls of Triton's own clients, over REST and gRPC.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import client_calls, grpc_calls
from tests.conformance.conversations import CONVERSATIONS
from tests.conformance.requests import REQUESTS
from tests.engines.conformance.asking import Server
from tests.engines.conformance.differences import assert_alike
from tests.engines.conformance.pair import Pair
from tests.support.wire import Reply, Wire, send

pytestmark = pytest.mark.triton

# Each parser describes the fault of invalid JSON in its own words.
PARSE_ERROR = re.compile(rb"(failed to parse the request JSON buffer: )[^\"]*")
# Headers with a meaning for clients. Date, server and connection handling differ by server.
COMPARED_HEADERS = ("content-type", "content-encoding", "accept-encoding", "inference-header-content-length", "allow")


def over_rest(server: Server) -> str:
    return f"127.0.0.1:{server.http_port}"


def over_grpc(server: Server) -> str:
    return f"127.0.0.1:{server.grpc_port}"


def comparable(reply: Reply) -> dict[str, Any]:
    """A reply's compared parts. Both servers send errors as JSON, but Triton's content type is sometimes text/plain:
    that difference is ignored."""
    headers = {name: reply.headers.get(name) for name in COMPARED_HEADERS}
    if reply.status >= 400 and reply.body.startswith(b'{"error":') and headers["content-type"] == "text/plain":
        headers["content-type"] = "application/json"
    return {"status": reply.status, **headers, "body": PARSE_ERROR.sub(rb"\1", reply.body)}


@pytest.mark.parametrize("name", REQUESTS)
def test_request(name: str, simple: Pair) -> None:
    """Both servers send the same status, body bytes and headers."""
    request = REQUESTS[name]

    def ask(server: Server) -> dict[str, Any]:
        return comparable(send(server.http_port, request.method, request.path, request.body, request.headers))

    triton, host = simple.ask(ask)
    assert triton["status"] == request.status, triton
    assert_alike(f"request: {name}", triton, host)


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.__name__)
def test_conversation(conversation: Callable[[Wire], list[Reply]], simple: Pair) -> None:
    """A connection proceeds the same way on both servers, byte by byte as the client sends it."""

    def ask(server: Server) -> list[dict[str, Any]]:
        with Wire(server.http_port) as wire:
            try:
                return [comparable(reply) for reply in conversation(wire)]
            except ConnectionError as error:
                return [{"broken off": type(error).__name__}]

    assert_alike(f"conversation: {conversation.__name__}", *simple.ask(ask))


# The calls name one region of shared memory, so the two servers are called one after the other.


@pytest.mark.parametrize("call", client_calls.CALLS, ids=lambda call: call.__name__)
def test_rest_client(call: Callable[[str], Any], simple: Pair) -> None:
    """Triton's own REST client gets the same results from both."""
    assert_alike(f"rest: {call.__name__}", call(over_rest(simple.triton)), call(over_rest(simple.host)))


@pytest.mark.parametrize("call", [*grpc_calls.CALLS, *grpc_calls.STREAM_CALLS], ids=lambda call: call.__name__)
def test_grpc_client(call: Callable[[str], Any], simple: Pair) -> None:
    """Triton's own gRPC client gets the same results from both."""
    assert_alike(f"grpc: {call.__name__}", call(over_grpc(simple.triton)), call(over_grpc(simple.host)))
