"""Anthropic's client library against the reader and writer of the messages API."""

import anthropic
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

from .real_clients import anthropic_client

ASKED = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
TEXT = [
    Started("msg_9", "llama"),
    TextDelta("Hel"),
    TextDelta('lo "you" \u00e9\n'),
    Finished(),
    TokenUsage(prompt=12, completion=2, cached=8),
]
TOOLS = [
    Started("msg_9", "llama"),
    ReasoningDelta("I must "),
    ReasoningDelta("look."),
    ReasoningDelta("", signature="proof"),
    TextDelta("Looking."),
    ToolCallDelta(0, "call_1", "weather"),
    ToolCallDelta(0, arguments='{"city":'),
    ToolCallDelta(0, arguments='"Rome"}'),
    ToolCallDelta(1, "call_2", "time"),
    Finished("tool_calls"),
    TokenUsage(20, 9, 0, 4),
]


def ask(events, *, stream, **more):
    client, answering = anthropic_client(events)
    if not stream:
        return client.messages.create(**ASKED, **more), answering
    with client.messages.stream(**ASKED, **more) as written:
        return written.get_final_message(), answering


@pytest.mark.parametrize("stream", [False, True])
def test_text(stream):
    """The client receives a message's text, model, stop reason and usage, streamed or whole."""
    message, answering = ask(TEXT, stream=stream)
    assert (message.id, message.model, message.role, message.type) == ("msg_9", "llama", "assistant", "message")
    assert [block.text for block in message.content] == ['Hello "you" \u00e9\n']
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 8, 2)
    hi = (Message("user", (Text("Hi"),)),)
    assert answering.requested == Generation("m", None, hi, (), {"max_tokens": 5}, stream, include_usage=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_and_tools(stream):
    """Thinking, text and tool calls are separate blocks, in order."""
    message, _ = ask(TOOLS, stream=stream)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, weather, time = message.content
    assert (thinking.thinking, thinking.signature, text.text) == ("I must look.", "proof", "Looking.")
    assert (weather.id, weather.name, weather.input) == ("call_1", "weather", {"city": "Rome"})
    assert (time.id, time.name, time.input) == ("call_2", "time", {})
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens_details.thinking_tokens == 4


def test_redacted_thinking():
    """A redacted thinking block round-trips unchanged through the client."""
    events = [
        Started(),
        ReasoningDelta("", signature="redacted_thinking:xyz"),
        TextDelta("a"),
        Finished(),
        TokenUsage(),
    ]
    for stream in (False, True):
        message, _ = ask(events, stream=stream)
        assert [block.type for block in message.content] == ["redacted_thinking", "text"]
        assert message.content[0].data == "xyz"
        client, answering = anthropic_client(TEXT)
        turn = {"role": "assistant", "content": message.content}
        client.messages.create(**{**ASKED, "messages": [*ASKED["messages"], turn, {"role": "user", "content": "b"}]})
        assert answering.requested.messages[1].parts[0].signature == "redacted_thinking:xyz"


@pytest.mark.parametrize(
    ("finished", "reason", "sequence"),
    [
        (Finished("length"), "max_tokens", None),
        (Finished("stop", 0, "END"), "stop_sequence", "END"),
        (Finished("content_filter"), "refusal", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_reasons(stream, finished, reason, sequence):
    """Each finish reason maps to Anthropic's stop reason."""
    message, _ = ask([Started(), TextDelta("a"), finished, TokenUsage(1, 1)], stream=stream)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_events_in_order():
    """A stream has the events of Anthropic's documentation, in that order."""
    client, _ = anthropic_client(TEXT)
    events = list(client.messages.create(**ASKED, stream=True))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_all_is_of_the_client_s_types():
    """Each event and a whole message validate against the client's types."""
    client, _ = anthropic_client(TOOLS)
    for written in (*client.messages.create(**ASKED, stream=True), client.messages.create(**ASKED)):
        assert type(written).model_validate(written.to_dict()) == written


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, anthropic.BadRequestError),
        (404, anthropic.NotFoundError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
    ],
)
def test_a_failure(status, error):
    """A failure raises the client's own error with the engine's message."""
    with pytest.raises(error, match="no such thing"):
        ask([EngineFailed("no such thing", status)], stream=False)


def test_a_failure_amid_a_stream():
    """A failure during a stream raises an error in the client."""
    client, _ = anthropic_client([Started(), TextDelta("a"), EngineFailed("the engine broke", 502)])
    came = []
    with pytest.raises(anthropic.APIStatusError, match="the engine broke"):
        came.extend(client.messages.create(**ASKED, stream=True))
    assert came[-1].delta.text == "a"


def test_a_whole_conversation():
    """Tools, tool choice and tool results are read as the client writes them."""
    weather = {"name": "weather", "description": "Of a city.", "input_schema": {"type": "object"}}
    called = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "Sun"}]}
    turns = [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
    client, answering = anthropic_client(TEXT)
    client.messages.create(
        **{**ASKED, "messages": [*ASKED["messages"], *turns]},
        tools=[weather],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        system="Be brief.",
        stop_sequences=["END"],
    )
    sent = answering.requested
    assert [message.role for message in sent.messages] == ["system", "user", "assistant", "tool"]
    assert sent.messages[2].tool_calls[0].arguments == '{"city":"Rome"}'
    assert (sent.messages[3].tool_call_id, sent.messages[3].text) == ("call_1", "Sun")
    assert sent.tools == (Tool("weather", "Of a city.", {"type": "object"}),)
    text = {"max_tokens": 5, "tool_choice": "required", "parallel_tool_calls": False, "stop": ["END"]}
    assert sent.options == text
