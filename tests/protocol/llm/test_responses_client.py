"""OpenAI's client library against the reader and writer of the responses API."""

import openai
import pytest

from gateway.protocol.llm.canonical import (
    EngineFailed,
    Finished,
    Generation,
    Message,
    ReasoningDelta,
    Started,
    Text,
    TextDelta,
    TokenUsage,
    Tool,
    ToolCallDelta,
)

from .real_clients import openai_client

TEXT = [
    Started("resp_9", "llama", 1700000001),
    TextDelta("Hel"),
    TextDelta('lo "you" \u00e9\n'),
    Finished(),
    TokenUsage(prompt=12, completion=2, cached=8),
]
TOOLS = [
    Started("resp_9", "llama"),
    ReasoningDelta("I must "),
    ReasoningDelta("look."),
    ReasoningDelta("", signature="proof"),
    TextDelta("Looking."),
    ToolCallDelta(0, "call_1", "weather"),
    ToolCallDelta(0, arguments='{"city":'),
    ToolCallDelta(0, arguments='"Rome"}'),
    ToolCallDelta(1, "call_2", "time", "{}"),
    Finished("tool_calls"),
    TokenUsage(20, 9, 0, 4),
]
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def ask(events, *, stream, **more):
    client, answering = openai_client(events)
    if not stream:
        return client.responses.create(model="m", input="Hi", **more), answering
    with client.responses.stream(model="m", input="Hi", **more) as written:
        for _ in written:
            pass
        return written.get_final_response(), answering


@pytest.mark.parametrize("stream", [False, True])
def test_text(stream):
    """The client receives a response's text, model, status and usage, streamed or whole."""
    response, answering = ask(TEXT, stream=stream)
    assert (response.id, response.model, response.object, response.status) == (
        "resp_9",
        "llama",
        "response",
        "completed",
    )
    assert response.created_at == 1700000001
    assert response.output_text == 'Hello "you" \u00e9\n'
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (12, 2, 14)
    assert usage.input_tokens_details.cached_tokens == 8
    hi = (Message("user", (Text("Hi"),)),)
    assert answering.requested == Generation("m", None, hi, (), {}, stream, include_usage=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_and_tools(stream):
    """Reasoning, text and tool calls are separate items, in order."""
    response, _ = ask(TOOLS, stream=stream)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, weather, time = response.output
    assert (reasoning.content[0].text, reasoning.encrypted_content) == ("I must look.", "proof")
    assert message.content[0].text == "Looking."
    assert (weather.call_id, weather.name, weather.arguments) == ("call_1", "weather", '{"city":"Rome"}')
    assert (time.call_id, time.name, time.arguments) == ("call_2", "time", "{}")
    assert {item.status for item in response.output} == {"completed"}
    assert response.usage.output_tokens_details.reasoning_tokens == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "written"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_incomplete(stream, reason, written):
    """A text that was cut off has the status `incomplete` and a reason."""
    events = [Started(), TextDelta("a"), Finished(reason), TokenUsage(1, 1)]
    client, _ = openai_client(events)
    if stream:
        last = list(client.responses.create(model="m", input="Hi", stream=True))[-1]
        assert last.type == "response.incomplete"
        response = last.response
    else:
        response = client.responses.create(model="m", input="Hi")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", written)
    assert (response.output[0].status, response.output_text) == ("incomplete", "a")


def test_events_in_order():
    """A stream has the events of OpenAI's documentation, in that order."""
    client, _ = openai_client([Started(), ReasoningDelta("t"), *TEXT[1:3], ToolCallDelta(0, "c", "f", "{}"), *TEXT[3:]])
    events = list(client.responses.create(model="m", input="Hi", stream=True))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.output_index for event in events if event.type == "response.output_item.added"] == [0, 1, 2]


def test_events_are_of_the_client_s_types():
    """Each event validates against the client's types."""
    client, _ = openai_client([*TEXT[:2], TextDelta("x", 0, [{"token": "x", "logprob": -1.5}]), *TOOLS[1:]])
    for event in client.responses.create(model="m", input="Hi", stream=True, tools=[WEATHER]):
        assert type(event).model_validate(event.to_dict()) == event


def test_a_response_is_of_the_client_s_type():
    """A whole response validates against the client's type."""
    response, _ = ask(TOOLS, stream=False, tools=[WEATHER], metadata={"a": "b"}, reasoning={"effort": "low"})
    written = response.to_dict()
    assert type(response).model_validate(written) == response
    assert written["tools"] == [WEATHER]
    assert (written["metadata"], written["reasoning"]["effort"], written["store"]) == ({"a": "b"}, "low", False)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(stream):
    """Logprobs are attached to their text."""
    top = {"token": "a", "logprob": -0.5, "bytes": [97]}
    events = [Started(), TextDelta("a", 0, [{**top, "top_logprobs": [top]}]), Finished(), TokenUsage(1, 1)]
    response, answering = ask(events, stream=stream, top_logprobs=1, include=["message.output_text.logprobs"])
    [logprob] = response.output[0].content[0].logprobs
    assert (logprob.token, logprob.logprob, logprob.bytes) == ("a", -0.5, [97])
    assert [(one.token, one.bytes) for one in logprob.top_logprobs] == [("a", [97])]
    assert answering.requested.options == {"logprobs": 1}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
def test_a_failure(status, error):
    """A failure raises the client's own error with the engine's message."""
    with pytest.raises(error, match="no such thing"):
        ask([EngineFailed("no such thing", status)], stream=False)


def test_a_failure_amid_a_stream():
    """A failure during a stream raises an error in the client."""
    client, _ = openai_client([Started(), TextDelta("a"), EngineFailed("the engine broke", 502)])
    came = []
    with pytest.raises(openai.APIError, match="the engine broke"):
        came.extend(client.responses.create(model="m", input="Hi", stream=True))
    assert came[-1].delta == "a"


def test_a_second_turn():
    """A response's output and the tool results are accepted as the next request's input."""
    response, _ = ask(TOOLS, stream=False)
    client, answering = openai_client(TEXT)
    results = [{"type": "function_call_output", "call_id": call, "output": "x"} for call in ("call_1", "call_2")]
    given = [{"role": "user", "content": "Hi"}, *response.output, *results]
    client.responses.create(model="m", input=given, tools=[WEATHER], instructions="Be brief.", store=True)
    sent = answering.requested
    assert [message.role for message in sent.messages] == ["system", "user", "assistant", "tool", "tool"]
    turn = sent.messages[2]
    assert (turn.parts[0].text, turn.parts[0].signature, turn.text) == ("I must look.", "proof", "Looking.")
    assert [call.name for call in turn.tool_calls] == ["weather", "time"]
    assert sent.tools == (Tool("weather", "", {"type": "object"}, True),)


def test_parsed_text():
    """Structured output: the schema is read as in chat, and the client parses the reply."""
    from pydantic import BaseModel

    class City(BaseModel):
        name: str

    client, answering = openai_client([Started(), TextDelta('{"name":"Rome"}'), Finished(), TokenUsage(1, 1)])
    response = client.responses.parse(model="m", input="Hi", text_format=City)
    assert response.output_parsed == City(name="Rome")
    form = answering.requested.options["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "City", True)
