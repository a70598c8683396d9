"""Content beyond text, by every front that supports it: tools, schemas, reasoning, images."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.llm.clients import ASK
from tests.llm.clients.values import RefusedError, TextRequest, TextResult
from tests.llm.fleet import CANNED_V2, DROPPING, Fleet

pytestmark = pytest.mark.timeout(60)

SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
URL = f"data:image/png;base64,{PNG}"

CHATS = ("chat", "responses", "messages")
ANSWERING = ("chat", "messages", "responses")
V2 = ("generate", "generate_stream", "infer", "infer_binary", "model_infer", "model_stream_infer")


@pytest.fixture(autouse=True)
def _nothing_is_seen(fleet: Fleet) -> None:
    fleet.canned.forget()
    fleet.canned_v2.forget()


def seen(fleet: Fleet, engine: str) -> dict[str, Any]:
    """The body of the one request that the engine got."""
    canned = fleet.canned_v2 if engine in CANNED_V2 else fleet.canned
    (sight,) = canned.seen()
    body: dict[str, Any] = sight["body"]
    return body


def ask(fleet: Fleet, front: str, engine: str, options: Mapping[str, Any], *, streams: bool, **more: Any) -> TextResult:
    if front in V2:
        streams = front in ("generate_stream", "model_stream_infer")
    return ASK[front](fleet.gateway, TextRequest(engine, streams=streams, options=options, **more))


# Tools

_ADD = {"name": "add", "description": "adds"}
USE_ADD: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [{"role": "user", "content": "use add"}],
        "tools": [{"type": "function", "function": {**_ADD, "parameters": SCHEMA}}],
    },
    "responses": {"input": "use add", "tools": [{"type": "function", **_ADD, "parameters": SCHEMA}]},
    "messages": {
        "messages": [{"role": "user", "content": "use add"}],
        "tools": [{**_ADD, "input_schema": SCHEMA}],
    },
}
REQUIRED: dict[str, dict[str, Any]] = {
    "chat": {"tool_choice": "required"},
    "responses": {"tool_choice": "required"},
    "messages": {"tool_choice": {"type": "any"}},
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("engine", ANSWERING)
@pytest.mark.parametrize("front", CHATS)
def test_tools(fleet: Fleet, front: str, engine: str, streams: bool) -> None:
    """A tool reaches the engine, and the tool call reaches the client, streamed or not."""
    reply = ask(fleet, front, engine, USE_ADD[front], streams=streams, max_tokens=64)
    assert reply.tool_calls == [("add", {"count": 1})]
    assert reply.reason == "tool_calls"
    assert reply.text == ""


@pytest.mark.parametrize("engine", ["completions", *CANNED_V2])
@pytest.mark.parametrize("front", CHATS)
def test_tools_in_a_prompt(fleet: Fleet, front: str, engine: str) -> None:
    """Where the engine takes a prompt, the template writes the tools into it; `tool_choice`, which it cannot express,
    is refused by name."""
    ask(fleet, front, engine, USE_ADD[front], streams=False)
    body = seen(fleet, engine)
    assert body.get("prompt", body.get("text_input")).startswith("tool add user: use add")
    with pytest.raises(RefusedError, match="'tool_choice'"):
        ask(fleet, front, engine, USE_ADD[front] | REQUIRED[front], streams=False)


@pytest.mark.parametrize("engine", ["completions", "plain_completions"])
def test_tools_that_may_not_be_called(fleet: Fleet, engine: str) -> None:
    """With `tool_choice: none` the prompt does not have the tools."""
    ask(fleet, "chat", engine, USE_ADD["chat"] | {"tool_choice": "none"}, streams=False)
    assert "tool add" not in seen(fleet, engine)["prompt"]


@pytest.mark.parametrize("engine", ["plain_completions", "plain_vllm"])
@pytest.mark.parametrize("front", CHATS)
def test_tools_that_no_template_tells(fleet: Fleet, front: str, engine: str) -> None:
    """With a template that has no place for tools, they are refused, or dropped and listed."""
    with pytest.raises(RefusedError, match="'tools'"):
        ask(fleet, front, engine, USE_ADD[front], streams=False)
    reply = ask(fleet, front, engine + DROPPING, USE_ADD[front], streams=False)
    assert reply.headers["x-pointsman-dropped"] == "tools"


# A schema

IN_SCHEMA: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "count", "schema": SCHEMA}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "count", "schema": SCHEMA}}},
    "messages": {"extra_body": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}},
}
SCHEMA_AT: dict[str, Callable[[Any], Any]] = {
    "chat": lambda body: body["response_format"]["json_schema"]["schema"],
    "completions": lambda body: body["response_format"]["json_schema"]["schema"],
    "responses": lambda body: body["text"]["format"]["schema"],
    "messages": lambda body: body["output_config"]["format"]["schema"],
    "seen_vllm": lambda body: json.loads(json.loads(body["sampling_parameters"])["guided_decoding"])["json"],
}


@pytest.mark.parametrize("engine", SCHEMA_AT)
@pytest.mark.parametrize("front", CHATS)
def test_schema(fleet: Fleet, front: str, engine: str) -> None:
    """The schema of the reply reaches the engine unchanged."""
    reply = ask(fleet, front, engine, IN_SCHEMA[front], streams=False)
    assert SCHEMA_AT[engine](seen(fleet, engine)) == SCHEMA
    if engine in ("chat", "responses"):
        assert json.loads(reply.text) == {"count": 1}


@pytest.mark.parametrize("front", CHATS)
def test_schema_without_a_place(fleet: Fleet, front: str) -> None:
    """An ensemble without guided decoding refuses a schema."""
    with pytest.raises(RefusedError, match="'response_format'"):
        ask(fleet, front, "seen_trtllm", IN_SCHEMA[front], streams=False)


# Any JSON object

JSON_OBJECT: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_object"}},
    "responses": {"text": {"format": {"type": "json_object"}}},
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("front", JSON_OBJECT)
def test_json_object_by_a_tool(fleet: Fleet, front: str, streams: bool) -> None:
    """A messages engine, which has no JSON mode, must call a tool whose input is the answer: the client reads text."""
    reply = ask(fleet, front, "messages", JSON_OBJECT[front], streams=streams)
    assert (json.loads(reply.text), reply.tool_calls, reply.reason) == ({}, [], "stop")
    body = seen(fleet, "messages")
    assert body["tool_choice"] == {"type": "tool", "name": "json_tool_call"}
    assert body["tools"][0]["input_schema"] == {"type": "object", "properties": {}, "additionalProperties": True}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("front", JSON_OBJECT)
def test_json_object_beside_tools(fleet: Fleet, front: str, streams: bool) -> None:
    """With tools of the client's own, the model calls one of them or answers in JSON."""
    reply = ask(fleet, front, "messages", USE_ADD[front] | JSON_OBJECT[front], streams=streams)
    assert (reply.tool_calls, reply.reason, reply.text) == ([("add", {"count": 1})], "tool_calls", "")
    body = seen(fleet, "messages")
    assert [tool["name"] for tool in body["tools"]] == ["add", "json_tool_call"]
    assert body["tool_choice"] == {"type": "any"}


def test_json_object_of_a_model_that_must_call_a_tool(fleet: Fleet) -> None:
    """Where the client itself requires a tool's call, there is no text to be JSON."""
    options = USE_ADD["chat"] | REQUIRED["chat"] | JSON_OBJECT["chat"]
    ask(fleet, "chat", "messages", options, streams=False)
    assert [tool["name"] for tool in seen(fleet, "messages")["tools"]] == ["add"]


# Fields that change no answer

RECORDS = {"user": "ann", "metadata": {"a": "b"}}
HARMLESS: dict[str, dict[str, Any]] = {
    "chat": RECORDS
    | {"safety_identifier": "u", "prompt_cache_key": "k", "store": True, "verbosity": "medium"}
    | {"extra_body": {"prediction": {"type": "content", "content": "x"}, "cache_control": {"type": "ephemeral"}}}
    | {"messages": [{"role": "user", "name": "ann", "content": "one two"}]},
    "completions": {"user": "ann"},
    "responses": RECORDS
    | {"safety_identifier": "u", "prompt_cache_key": "k", "truncation": "auto"}
    | {"max_tool_calls": 3, "extra_body": {"context_management": [], "client_metadata": {"a": "b"}}},
    "messages": {
        "metadata": {"user_id": "ann"},
        "extra_body": {
            "mcp_servers": [],
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
    },
}


@pytest.mark.parametrize("engine", ["chat", "completions", "messages", "responses", *CANNED_V2])
@pytest.mark.parametrize("front", HARMLESS)
def test_fields_without_effect(fleet: Fleet, front: str, engine: str) -> None:
    """What is for a provider's records and caches is passed on or left out, and never refused."""
    reply = ask(fleet, front, engine, HARMLESS[front], streams=False)
    assert reply.text
    assert "x-pointsman-dropped" not in reply.headers


@pytest.mark.parametrize(("front", "engine"), [("chat", "responses"), ("responses", "chat")])
def test_keys_that_both_apis_have(fleet: Fleet, front: str, engine: str) -> None:
    """Chat and responses have the same hints to caches and safety checks: they arrive."""
    ask(fleet, front, engine, HARMLESS[front], streams=False)
    body = seen(fleet, engine)
    assert (body["safety_identifier"], body["prompt_cache_key"]) == ("u", "k")
    assert (body["user"], body["metadata"]) == ("ann", {"a": "b"})


# Reasoning

THINK: dict[str, dict[str, Any]] = {
    "chat": {"reasoning_effort": "low"},
    "completions": {"extra_body": {"reasoning_effort": "low"}},
    "responses": {"reasoning": {"effort": "low"}},
    "messages": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    **{front: {"sampling": {"reasoning_effort": "low"}} for front in V2},
}
# OpenAI's dialects have an effort, and no budget in tokens.
THOUGHTS = [
    ("chat", "chat", "let me count"),
    ("chat", "responses", "let me count"),
    ("responses", "chat", "let me count"),
    ("responses", "responses", "let me count"),
    ("messages", "messages", "let me count"),
    ("messages", "chat" + DROPPING, "let me count"),
    ("messages", "responses" + DROPPING, "let me count"),
    ("completions", "chat", "let me count"),
    ("completions", "responses", "let me count"),
    *((front, engine, "") for front in V2 for engine in ("chat", "responses")),
]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("front", "engine", "thoughts"), THOUGHTS)
def test_thoughts(fleet: Fleet, front: str, engine: str, thoughts: str, streams: bool) -> None:
    """The engine's reasoning is separate from its text, or left out where the dialect has no place for it."""
    reply = ask(fleet, front, engine, THINK[front], streams=streams, max_tokens=2048)
    assert reply.thoughts == thoughts
    assert reply.text.startswith("one two three")
    assert reply.completion_tokens == 23, "three of them are thoughts"


@pytest.mark.parametrize("engine", ["chat", "responses"])
def test_budget_of_thoughts(fleet: Fleet, engine: str) -> None:
    """OpenAI's dialects cannot express a budget in tokens, so it is refused."""
    with pytest.raises(RefusedError, match="'thinking_tokens'"):
        ask(fleet, "messages", engine, THINK["messages"], streams=False, max_tokens=2048)


# Images

_SEEING: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": URL}}],
            }
        ]
    },
    "responses": {
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": URL}],
            }
        ]
    },
    "messages": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                ],
            }
        ]
    },
}
SEEING = _SEEING | {front: {"image": PNG} for front in V2}


def translated(*engines: str) -> list[tuple[str, str]]:
    """Each front with each of the engines, except V2 with V2, which passes unchanged."""
    return [(front, engine) for front in SEEING for engine in engines if not (front in V2 and engine in CANNED_V2)]


@pytest.mark.parametrize(("front", "engine"), translated(*ANSWERING, "seen_vllm"))
def test_image(fleet: Fleet, front: str, engine: str) -> None:
    """An image reaches an engine that supports images, byte for byte."""
    reply = ask(fleet, front, engine, SEEING[front], streams=False)
    body = seen(fleet, engine)
    assert PNG in json.dumps(body)
    assert reply.text.strip() == "one two three"
    if engine == "seen_vllm":
        assert body["image"] == [PNG]


@pytest.mark.parametrize(("front", "engine"), translated("completions", "seen_trtllm"))
def test_image_without_a_place(fleet: Fleet, front: str, engine: str) -> None:
    """A request with an image does not reach a text-only engine."""
    with pytest.raises(RefusedError, match="image"):
        ask(fleet, front, engine, SEEING[front], streams=False)
    assert fleet.canned.seen() + fleet.canned_v2.seen() == []
