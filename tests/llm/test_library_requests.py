"""Requests as agent libraries send them, and what they read of the replies, by OpenAI's client.

Sources: smolagents `models.py` (OpenAIServerModel), instructor `mode.py` (JSON, TOOLS), langchain_openai
`with_structured_output`, the Vercel AI SDK's `generateObject`.
"""

import json
from typing import Any

import pytest

from tests.llm.clients.of_openai import connected
from tests.llm.fleet import Fleet
from tests.llm.pairs import ENGINE

SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
IN_PARTS: list[Any] = [
    {"role": "system", "content": [{"type": "text", "text": "You answer."}]},
    {"role": "user", "content": [{"type": "text", "text": "one two"}]},
]
JSON_MODE: dict[str, dict[str, Any]] = {
    "instructor": {
        "messages": [
            {"role": "system", "content": f"As a genius expert, return JSON of this schema: {json.dumps(SCHEMA)}"},
            {"role": "user", "content": "one"},
        ],
        "response_format": {"type": "json_object"},
    },
    "langchain": {
        "messages": [
            {"role": "user", "content": "add", "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "3"},
            {"role": "user", "content": "one"},
        ],
        "response_format": {"type": "json_object"},
        "n": 1,
        "temperature": 0.0,
        "top_p": 1.0,
    },
    "vercel": {
        "messages": [{"role": "system", "content": "JSON schema:"}, {"role": "user", "content": "one"}],
        "response_format": {"type": "json_object"},
        "temperature": 0,
        "max_tokens": 100,
    },
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("engine", ["chat", "messages", "responses"])
@pytest.mark.parametrize("library", JSON_MODE)
def test_json_mode(fleet: Fleet, library: str, engine: str, streams: bool) -> None:
    """The content of a reply in JSON mode is a JSON object, with no tool's call beside it."""
    with connected(fleet.gateway) as client:
        if streams:
            chunks = list(client.chat.completions.create(model=engine, stream=True, **JSON_MODE[library]))
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
            text, calls = "".join(delta.content or "" for delta in deltas), [delta.tool_calls for delta in deltas]
            assert not any(calls)
        else:
            message = client.chat.completions.create(model=engine, **JSON_MODE[library]).choices[0].message
            text = message.content
            assert not message.tool_calls
    assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("engine", ["chat", "messages", "responses"])
def test_tool_mode_of_instructor(fleet: Fleet, engine: str) -> None:
    """A tool that the client forces is called, in any dialect."""
    tool = {"type": "function", "function": {"name": "Count", "description": "Counts", "parameters": SCHEMA}}
    choice = {"type": "function", "function": {"name": "Count"}}
    with connected(fleet.gateway) as client:
        reply = client.chat.completions.create(
            model=engine,
            messages=[{"role": "user", "content": "one"}],
            tools=[tool],  # type: ignore[list-item]
            tool_choice=choice,  # type: ignore[arg-type]
        )
    (call,) = reply.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"count": 1}  # type: ignore[union-attr]


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["text", "trtllm"])
def test_smolagents_reads_the_usage(fleet: Fleet, engine: str) -> None:
    """An agent that adds up `usage` of each step reads one, whole and streamed, from an engine that counts nothing."""
    fleet.need(ENGINE[engine])
    given: dict[str, Any] = {"messages": IN_PARTS, "stop": ["Observation:", "Calling tools:"], "max_tokens": 8}
    with connected(fleet.gateway) as client:
        whole = client.chat.completions.create(model=engine, **given)
        chunks = list(
            client.chat.completions.create(model=engine, stream=True, stream_options={"include_usage": True}, **given)
        )
    assert whole.usage is not None
    assert whole.usage.prompt_tokens > 0
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    told = [chunk for chunk in chunks if chunk.usage]
    assert told == [chunks[-1]]
    assert told[0].choices == []
    assert told[0].usage is not None
    assert 0 < told[0].usage.completion_tokens <= 8
    assert whole.usage.model_extra == told[0].usage.model_extra == {"estimated": True}


def test_usage_that_an_engine_leaves_out(fleet: Fleet) -> None:
    """A stream of another dialect whose engine tells no usage, though it is asked, has an estimate: its events."""
    fleet.canned.forget()
    fleet.canned.break_down("no-usage", times=1)
    with connected(fleet.gateway) as client:
        stream = client.completions.create(
            model="chat", prompt="one two", max_tokens=3, stream=True, stream_options={"include_usage": True}
        )
        used = list(stream)[-1].usage
    assert used is not None
    assert (used.prompt_tokens, used.completion_tokens, used.model_extra) == (2, 3, {"estimated": True})
