"""The REST application on a connection whose transport is the test's."""

import asyncio
import gzip
import json
import zlib

import pytest

from engines.host.client_limits import ClientLimits
from engines.host.rest.app import RestApp
from engines.host.rest.server import RestServer
from gateway.wire.http1.body import LAST_CHUNK, BodyReader, encode_chunk
from tests.engines.host.fake_service import FakeService
from tests.engines.host.rest.test_connection import Transport

INFER = "/v2/models/adder/infer"
BODY = json.dumps(
    {
        "inputs": [
            {"name": "a", "datatype": "INT32", "shape": [1, 1], "data": [1]},
            {"name": "b", "datatype": "INT32", "shape": [1, 1], "data": [2]},
        ]
    }
).encode()
SLEEP = json.dumps({"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["z"]}]}).encode()


class Client:
    """One request on a connection; `leave` closes it."""

    def __init__(self, service, limits, method, path, body=b"", pieces=None, **headers):
        self.connection = RestServer(RestApp(service, limits), limits).new_connection()
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        fields = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if pieces is None:
            fields.append(f"content-length: {len(body)}")
        else:
            fields.append("transfer-encoding: chunked")
            body = b"".join(map(encode_chunk, pieces)) + LAST_CHUNK
        self.sent = "\r\n".join([f"{method} {path} HTTP/1.1", *fields, "", ""]).encode() + body
        self.status = None

    def leave(self):
        self.transport.close()
        self.connection.connection_lost(None)

    async def run(self):
        """Send the request, and read the reply until it is complete."""
        self.connection.data_received(self.sent)
        while not self._has_read():
            await asyncio.sleep(0)
        return self

    def _has_read(self):
        head, end, body = self.transport.written.partition(b"\r\n\r\n")
        if not end:
            return False
        line, *fields = head.decode().split("\r\n")
        self.status = int(line.split()[1])
        self.headers = dict(field.split(": ") for field in fields)
        length = self.headers.get("content-length")
        reader = BodyReader(None if length is None else int(length))
        self.body = reader.feed(body)
        self.is_over = reader.has_ended
        return self.is_over


def send_request(method, path, body=b"", *, service=None, limits=None, pieces=None, **headers):
    async def run():
        client = Client(service or FakeService(), limits or ClientLimits(), method, path, body, pieces, **headers)
        return await asyncio.wait_for(client.run(), 120)

    return asyncio.run(run())


def error_of(reply):
    assert reply.headers["content-type"] == "application/json"
    return reply.status, json.loads(reply.body)["error"]


def test_infer():
    """JSON in, JSON out, with its length."""
    reply = send_request("POST", INFER, BODY)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.headers["content-length"] == str(len(reply.body))
    assert json.loads(reply.body)["outputs"][0] == {"name": "sum", "datatype": "INT32", "shape": [1, 1], "data": [3]}


def test_a_body_in_pieces():
    """A body may arrive in any pieces, an empty last one included."""
    assert send_request("POST", INFER, pieces=[BODY[:10], BODY[10:11], BODY[11:], b""]).status == 200


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compression_both_ways(encoding, pack):
    """Request bodies are decompressed, and the reply has the encoding that the client prefers."""
    reply = send_request(
        "POST", INFER, pack(BODY), content_encoding=encoding, accept_encoding=f"br, {encoding};q=0.5, identity;q=0.1"
    )
    assert (reply.status, reply.headers["content-encoding"]) == (200, encoding)
    assert b'"sum"' in zlib.decompress(reply.body, 47)


def test_an_unknown_encoding():
    """The reply names the known encodings."""
    reply = send_request("POST", INFER, BODY, content_encoding="br")
    assert error_of(reply) == (501, "Unsupported compression type")
    assert reply.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/", 404, "Not Found"),
        ("GET", "/v2/", 404, "Not Found"),
        ("POST", "/feedback", 404, "Not Found"),
        ("POST", "/v2/models/adder/versions/one/infer", 404, "Not Found"),
        ("GET", INFER, 405, "Method Not Allowed"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("DELETE", "/v2/logging", 405, "Method Not Allowed"),
        ("POST", "/v2/models/nope/infer", 404, "Request for unknown model: 'nope' is not found"),
        (
            "POST",
            "/v2/models/repeater/infer",
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        ),
        ("GET", "/v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
        ("GET", "/v2/models/nope/ready", 400, "Model version not ready"),
    ],
)
def test_refusals(method, path, status, text):
    """Triton's statuses and texts, before the body is looked at."""
    assert error_of(send_request(method, path, b"{")) == (status, text)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/adder/ready"])
def test_health_has_no_body(path):
    """The status is 400 where the server is not ready."""
    reply = send_request("GET", path)
    assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "0")
    service = FakeService()
    service.is_ready = False
    assert send_request("GET", "/v2/health/ready", service=service).status == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/health/live", b'{"live":true}'),
        ("/v2/health/ready", b'{"ready":true}'),
        ("/v2/models/adder/ready", b'{"name":"adder","ready":true}'),
    ],
)
def test_health_in_json(path, body):
    """A client that accepts JSON gets the body of the V2 protocol, as KServe's do."""
    reply = send_request("GET", path, accept="application/json")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, body, "application/json")
    service = FakeService()
    service.is_ready = False
    reply = send_request("GET", "/v2/health/ready", service=service, accept="text/html, application/json")
    assert (reply.status, reply.body) == (400, b'{"ready":false}')


def test_control_operations():
    """In the form of Triton's REST."""
    assert json.loads(send_request("GET", "/v2").body) == {
        "name": "fake",
        "version": "1.0",
        "extensions": ["classification", "sequence"],
    }
    assert json.loads(send_request("GET", "/v2/models/text").body)["inputs"] == [
        {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    ]
    service = FakeService()
    reply = send_request("POST", "/v2/repository/models/adder/load", b'{"parameters":{"config":"{}"}}', service=service)
    assert (reply.status, reply.body) == (200, b"")
    ((name, request),) = service.rpcs
    assert (name, request.model_name, request.parameters["config"].string_param) == (
        "RepositoryModelLoad",
        "adder",
        "{}",
    )
    assert error_of(send_request("POST", "/v2/repository/models/nope/load"))[0] == 500
    status, text = error_of(send_request("POST", "/v2/repository/index", b"{"))
    assert status == 500
    assert text.startswith("failed to parse the request JSON buffer: ")
    assert text.endswith("line 1 column 2 (char 1)")


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v2/logging", b'{"log_info":"x"}', "attempt to access JSON non-boolean as boolean"),
        ("/v2/logging", b'{"log_verbose_level":-1}', "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (
            "/v2/repository/models/text/load",
            b'{"parameters":{"zzz":"1"}}',
            "unexpected error on creating Triton parameter",
        ),
        (
            "/v2/repository/models/text/load",
            b'{"parameters":{"config":1}}',
            "attempt to access JSON non-string as string",
        ),
    ],
)
def test_what_is_wrong_with_the_body_of_a_control_operation(path, body, text):
    """The texts are those of a real Triton (tests/conformance/requests.py)."""
    assert error_of(send_request("POST", path, body)) == (500, text)


@pytest.mark.parametrize(
    "field", [{"origin": "http://a.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}], ids=str
)
@pytest.mark.parametrize(
    "path", ["/v2/repository/models/adder/load", "/v2/systemsharedmemory/unregister", "/v2/logging"]
)
def test_a_web_page_changes_nothing(path, field):
    """What a browser sends for a page, without asking the host before, changes nothing; its inferences pass."""
    reply = send_request("POST", path, b"{}", content_type="text/plain", **field)
    assert error_of(reply)[0] == 403 and "web page" in error_of(reply)[1]
    assert b"web page" not in send_request("POST", path, b"{}").body
    assert send_request("POST", INFER, BODY, **field).status == 200


def test_restricted_apis():
    """A restricted category requires its header for every method."""
    service = FakeService(rest_inference=("X-Key", "secret"))
    text = "This API is restricted, expecting header 'X-Key'"
    for headers in ({}, {"x_key": "wrong"}):
        assert error_of(send_request("GET", INFER, service=service, **headers)) == (403, text)
    assert send_request("POST", INFER, BODY, service=service, x_key="secret").status == 200
    assert send_request("GET", "/v2/health/live", service=service).status == 200


def test_headers_and_trace_context_reach_the_service():
    """Matching headers become parameters; W3C trace context is passed on."""
    service = FakeService()
    limits = ClientLimits(rest_header_pattern="x-forward-")
    send_request("POST", INFER, BODY, service=service, limits=limits, X_Forward_A="1", other="2", traceparent="00-aa")
    (sent,) = service.requests
    assert sent.parameters == {"X-Forward-A": "1"}  # as the client wrote it
    assert sent.trace == {"traceparent": "00-aa"}


@pytest.mark.parametrize("pieces", [None, [BODY[:50], BODY[50:]]])
def test_bodies_have_a_limit(pieces):
    """A body above the limit is refused, by its declared length or while it arrives."""
    status, text = error_of(send_request("POST", INFER, BODY, pieces=pieces, limits=ClientLimits(max_body_bytes=100)))
    assert status == 400
    assert text.startswith("request JSON size of ")
    assert text.endswith(
        "exceeds the maximum allowed input size of 100 bytes. Use --http-max-input-size to increase the limit."
    )


def test_decompressed_bodies_have_the_same_limit():
    """The limit applies to the decompressed size."""
    reply = send_request(
        "POST", INFER, gzip.compress(bytes(10_000)), limits=ClientLimits(max_body_bytes=100), content_encoding="gzip"
    )
    assert error_of(reply) == (
        400,
        "Decompressed data size exceeds the maximum allowed value of 100 bytes. Use --http-max-input-size to increase "
        "the limit.",
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [("infer", SLEEP), ("generate", b'{"text_input":"z"}'), ("generate_stream", b'{"text_input":"z"}')],
)
def test_a_client_that_leaves_cancels_its_call(path, body):
    """The call is cancelled at once, and nothing is sent."""

    async def run():
        service = FakeService()
        client = Client(service, ClientLimits(), "POST", f"/v2/models/sleeper/{path}", body)
        client.connection.data_received(client.sent)
        while not service.sleeping:
            await asyncio.sleep(0)
        client.leave()
        while not service.sleeping[0].is_cancelled:
            await asyncio.sleep(0.001)
        service.sleeping[0].fail_cancelled()
        assert client.transport.written == b""

    asyncio.run(asyncio.wait_for(run(), 120))


@pytest.mark.parametrize("path", ["infer", "generate"])
def test_a_client_that_leaves_early_sends_nothing(path):
    """An incomplete body submits no request."""

    async def run():
        service = FakeService()
        client = Client(service, ClientLimits(), "POST", f"/v2/models/adder/{path}", BODY)
        client.connection.data_received(client.sent[:-10])
        await asyncio.sleep(0)
        client.leave()
        while client.connection.server.tasks:
            await asyncio.sleep(0)
        assert (service.requests, client.transport.written) == ([], b"")

    asyncio.run(asyncio.wait_for(run(), 120))


def generate(model, path="generate", **content):
    return send_request("POST", f"/v2/models/{model}/{path}", json.dumps(content).encode())


def test_generate():
    """The reply is one flat object; a model that does not respond exactly once is an error."""
    assert json.loads(generate("text", text_input="hi", n=2).body)["text_output"] == 'HI {"n": 2}'
    for count in (0, 2):
        status, text = error_of(generate("repeater", text_input="hi", count=count))
        assert (status, text[:48]) == (200, "generate expects model to produce exactly 1 resp")
    assert error_of(generate("failer", text_input="x")) == (400, "asked to fail: x")
    assert error_of(send_request("POST", "/v2/models/text/generate", b"x", content_encoding="gzip")) == (
        400,
        "Unsupported content-encoding, only 'identity' is supported.",
    )


def test_a_request_that_was_never_taken_has_its_own_status():
    """An invalid generate_stream request has status 400, unlike a failure of the model."""
    status, text = error_of(generate("text", "generate_stream"))
    assert (status, "expected 1 inputs but got 0 inputs for model 'text'" in text) == (400, True)


def test_generate_stream():
    """Each response is an event. The first one determines the status, later errors are events."""
    reply = generate("repeater", "generate_stream", text_input="hi", count=2)
    event = b'data: {"model_name":"repeater","model_version":"1","text_output":"hi"}\n\n'
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert (reply.body, reply.is_over) == (event * 2, True)
    reply = generate("repeater", "generate_stream", text_input="hi", count=2, fail_after=1)
    assert (reply.status, reply.body) == (200, event + b'data: {"error":"failed after 1"}\n\n')
    reply = generate("repeater", "generate_stream", text_input="hi", count=2, fail_after=0)
    assert (reply.status, reply.body) == (400, b'data: {"error":"failed after 0"}\n\n')
    reply = generate("repeater", "generate_stream", text_input="hi", count=0)
    assert (reply.status, reply.body, reply.is_over) == (200, b"", True)


def test_what_no_one_foresaw_is_an_error_of_the_host():
    """The client gets status 500 with the kind of the exception."""
    service = FakeService()
    service.models["text"].answer = lambda call: 1 / 0
    reply = send_request("POST", "/v2/models/text/generate", b'{"text_input":"x"}', service=service)
    assert error_of(reply) == (500, "the host failed: ZeroDivisionError")
