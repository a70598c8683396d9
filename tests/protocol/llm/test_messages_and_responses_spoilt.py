"""Property tests with corrupted requests and replies of the messages and responses APIs: only GatewayErrors are
raised."""

import copy
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm import (
    messages_reply,
    messages_request,
    responses_reply,
    responses_request,
)
from gateway.protocol.llm.canonical import Generation

from . import test_messages_reply, test_messages_request, test_responses_reply, test_responses_request

SPOILS = [None, True, 0, -1.5, "", "x", [], [None], ["x"], [{}], {}, {"type": "text"}, {"type": 3}, {"x": {"y": []}}]


def spoilt(data, value, spoil):
    """A copy of the value with one item at a random depth replaced."""
    value = copy.deepcopy(value)
    holder, key = None, None
    inner = value
    while isinstance(inner, dict | list) and inner and (holder is None or data.draw(st.booleans())):
        keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
        holder, key = inner, data.draw(st.sampled_from(list(keys)))
        inner = holder[key]
    if holder is not None:
        holder[key] = spoil
    return value


def bodies(tests) -> list[dict]:
    contents = [given for given, _ in tests.CONTENT] if hasattr(tests, "CONTENT") else []
    inputs = [{"input": items} for items, _ in tests.INPUTS] if hasattr(tests, "INPUTS") else []
    return [json.loads(tests.body(**given)) for given in (*contents, *inputs, *(one for one, _ in tests.OPTIONS))]


REQUESTS = [
    (messages_request.read_request, messages_request.write_request, bodies(test_messages_request)),
    (responses_request.read_request, responses_request.write_request, bodies(test_responses_request)),
]


@pytest.mark.parametrize(("read", "write", "examples"), REQUESTS, ids=["messages", "responses"])
@given(data=st.data())
def test_spoilt_requests(read, write, examples, data):
    """A corrupted request is either rejected, or read and written for an engine."""
    body = json.dumps(spoilt(data, data.draw(st.sampled_from(examples)), data.draw(st.sampled_from(SPOILS)))).encode()
    with suppress(GatewayError):
        written, lost = write(read(body), model="m", drop=True)
        assert json.loads(written)["model"] == "m"
        assert len(set(lost)) == len(lost)


MESSAGES = (messages_reply.MessagesReplyReader, messages_reply.MessagesReplyWriter)
RESPONSES = (responses_reply.ResponsesReplyReader, responses_reply.ResponsesReplyWriter)
REPLIES = [(*MESSAGES, test_messages_reply), (*RESPONSES, test_responses_reply)]


@pytest.mark.parametrize(("reader", "writer", "tests"), REPLIES, ids=["messages", "responses"])
@given(data=st.data())
def test_spoilt_streams(reader, writer, tests, data):
    """A corrupted engine stream is either translated or raises an upstream protocol error."""
    written = tests.told_of(data.draw(st.sampled_from([stream for stream, _ in tests.STREAMS])))
    events = spoilt(data, written, data.draw(st.sampled_from(SPOILS)))
    wrote, read = writer(Generation("m"), id="i", created=1, model="m"), reader()
    try:
        for event in events:
            wrote.feed(read.feed(b"data: " + json.dumps(event).encode() + b"\n\n"))
        wrote.feed(read.end())
        wrote.end()
    except GatewayError as error:
        assert error.kind is ErrorKind.UPSTREAM_PROTOCOL


WHOLES = [
    (*MESSAGES, test_messages_reply.MESSAGE, {"type": "message"}),
    (*RESPONSES, test_responses_reply.WHOLE, {"object": "response"}),
]


@pytest.mark.parametrize(("reader", "writer", "example", "named"), WHOLES, ids=["messages", "responses"])
@given(data=st.data())
def test_spoilt_replies(reader, writer, example, named, data):
    """A corrupted whole reply is either translated or raises an upstream protocol error."""
    body = json.dumps(spoilt(data, example, data.draw(st.sampled_from(SPOILS)))).encode()
    try:
        status, written = writer(Generation("m"), id="i", created=1, model="m").whole(reader().whole(200, body))
        assert status >= 400 or named.items() <= json.loads(written).items()
    except GatewayError as error:
        assert error.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize(("read", "write", "examples"), REQUESTS, ids=["messages", "responses"])
def test_nested_too_deeply(read, write, examples):
    """JSON that is nested too deeply to be written is rejected with a GatewayError."""
    deep = {"type": "object", "x": json.loads("[" * 400 + "]" * 400)}
    tool = {"type": "function", "name": "f", "parameters": deep}
    if read is messages_request.read_request:
        tool = {"name": "f", "input_schema": deep}
    with pytest.raises(GatewayError, match="cannot be written for an engine"):
        write(read(json.dumps({**examples[0], "tools": [tool]}).encode()), model="m", drop=False)
