"""Requests of Anthropic's messages, read.

Taken, and of no effect: `cache_control` and `eager_input_streaming` (engines cache prompts and stream on their own),
`service_tier` and `speed` where they say what is the default anyway. Refused by name: tools of Anthropic's own, blocks
that only its servers can make sense of, files of its files API.

Source: Anthropic API reference, "Create a Message".
"""

from __future__ import annotations

from typing import Any

from gateway.protocol.llm.canonical import Generation, Media, Message, Part, Reasoning, Text, Tool, ToolCall, data_url
from gateway.protocol.llm.json_fields import (
    Fields,
    bad_request,
    checked,
    dumped,
    objects,
    optional,
    read_fields,
    required,
    texts,
)
from gateway.protocol.llm.openai_options import read_tool, with_others
from gateway.protocol.llm.sampling_fields import SAMPLING_FIELDS
from gateway.protocol.operations import LlmApi

# What a tool's result begins with where it tells of a failure (`is_error`), for which other APIs have no field.
FAILED_RESULT = Text("Error: ")
# Thinking that only Anthropic can read stands in a signature, behind this.
REDACTED = "redacted_thinking:"

_SAME_NAME = [(field.name, field.type.json_type) for field in SAMPLING_FIELDS if LlmApi.MESSAGES in field.apis]
_TOOL_FIELDS = {"name", "description", "input_schema", "type", "strict", "cache_control", "eager_input_streaming"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_READ_ELSEWHERE = {
    *(name for name, _ in _SAME_NAME),
    *("model", "messages", "system", "tools", "stream", "cache_control"),
    *("stop_sequences", "metadata", "thinking", "output_config", "tool_choice"),
}
_WITHOUT_EFFECT = {"service_tier": ("auto", "standard_only"), "speed": ("standard",)}


def read_request(body: bytes) -> Generation:
    """What a client asks of `/v1/messages`."""
    given = read_fields(body)
    model = required(given, "model", str)
    if given.get("max_tokens") is None:
        raise bad_request(
            "'max_tokens' is missing; Anthropic's messages require it: how many tokens to generate at most"
        )
    options = _options(given)
    messages = [*_system(given.get("system")), *_messages(required(given, "messages", list))]
    if not given["messages"]:
        raise bad_request("'messages' must hold at least one message")
    tools = tuple(_tool(tool, where) for where, tool in objects(given.get("tools") or [], "tools"))
    if not tools and options.get("tool_choice") in ("auto", "none"):
        del options["tool_choice"]
    stream = bool(optional(given, "stream", bool))
    options = with_others(options, given, _READ_ELSEWHERE, _WITHOUT_EFFECT)
    return Generation(model, None, tuple(messages), tools, options, stream, include_usage=stream)


def _options(given: Fields) -> dict[str, Any]:
    """The options among these fields, by their canonical names."""
    options: dict[str, Any] = {}
    for name, kind in _SAME_NAME:
        if optional(given, name, kind) is not None:
            options[name] = given[name]
    if given.get("stop_sequences"):
        options["stop"] = texts(given["stop_sequences"], "stop_sequences")
    metadata = dict(optional(given, "metadata", dict) or {})
    if optional(metadata, "user_id", str, "metadata") is not None:
        options["user"] = metadata["user_id"]
    metadata.pop("user_id", None)
    if metadata:
        options["metadata"] = metadata
    options |= _thinking(optional(given, "thinking", dict))
    options |= _output(optional(given, "output_config", dict) or {})
    return options | _tool_choice(optional(given, "tool_choice", dict))


def _thinking(thinking: Fields | None) -> dict[str, Any]:
    """`adaptive` leaves it to the model, as absence does; reasoning is sent in full, so `summarized` has no effect."""
    if thinking is None:
        return {}
    options: dict[str, Any] = {}
    kind = required(thinking, "type", str, "thinking")
    if kind == "enabled":
        options["thinking_tokens"] = required(thinking, "budget_tokens", int, "thinking")
    elif kind == "disabled":
        options["thinking_tokens"] = 0
    elif kind != "adaptive":
        options["thinking.type"] = kind
    if thinking.get("display") not in (None, "summarized"):
        options["thinking.display"] = thinking["display"]
    return options


def _output(config: Fields) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in config.items():
        if value is None:
            continue
        if name == "effort":
            options["reasoning_effort"] = checked(value, str, "output_config.effort")
        elif name == "format" and isinstance(value, dict) and value.get("type") == "json_schema":
            schema = required(value, "schema", dict, "output_config.format")
            options["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
        else:
            options[f"output_config.{name}"] = value
    return options


def _tool_choice(choice: Fields | None) -> dict[str, Any]:
    if choice is None:
        return {}
    options: dict[str, Any] = {}
    kind = required(choice, "type", str, "tool_choice")
    if kind == "tool":
        name = required(choice, "name", str, "tool_choice")
        options["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in _CHOICES:
        options["tool_choice"] = _CHOICES[kind]
    else:
        raise bad_request(f"'tool_choice.type' must be auto, any, tool or none, not '{kind}'")
    if optional(choice, "disable_parallel_tool_use", bool, "tool_choice"):
        options["parallel_tool_calls"] = False
    return options


def _tool(tool: Fields, where: str) -> Tool:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        what = (
            f"'{where}' is a '{kind}', a tool of Anthropic's own; engines here take tools with an 'input_schema' alone"
        )
        raise bad_request(what)
    return read_tool(tool, where, _TOOL_FIELDS, required(tool, "input_schema", dict, where))


def _system(system: Any) -> list[Message]:
    if system is None or isinstance(system, str):
        return [Message("system", (Text(system),))] if system else []
    parts = tuple(_text(block, where) for where, block in objects(system, "system"))
    return [Message("system", parts)] if parts else []


def _text(block: Fields, where: str) -> Text:
    if block.get("type") != "text":
        raise bad_request(f"'{where}.type' must be text")
    return Text(required(block, "text", str, where))


def _messages(given: list[Any]) -> list[Message]:
    messages: list[Message] = []
    for where, message in objects(given, "messages"):
        role = required(message, "role", str, where)
        if role not in ("user", "assistant", "system"):
            raise bad_request(f"'{where}.role' must be user or assistant, not '{role}'")
        content, path = message.get("content"), f"{where}.content"
        if isinstance(content, str):
            messages.append(Message(role, (Text(content),)))
            continue
        blocks = list(objects(required(message, "content", list, where), path))
        if role == "user":
            messages += _user(blocks)
        elif role == "assistant":
            messages.append(_assistant(blocks))
        else:
            messages.append(Message("system", tuple(_text(block, at) for at, block in blocks)))
    return messages


def _user(blocks: list[tuple[str, Fields]]) -> list[Message]:
    """A turn of the user's, in which each tool's result becomes a message of its own."""
    messages: list[Message] = []
    parts: list[Part] = []
    for where, block in blocks:
        if block.get("type") != "tool_result":
            parts += _parts(block, where)
            continue
        if parts:
            messages.append(Message("user", tuple(parts)))
            parts = []
        messages.append(Message("tool", _result(block, where), (), required(block, "tool_use_id", str, where)))
    if parts or not messages:
        messages.append(Message("user", tuple(parts)))
    return messages


def _result(block: Fields, where: str) -> tuple[Part, ...]:
    content = block.get("content")
    parts: list[Part] = [FAILED_RESULT] if optional(block, "is_error", bool, where) else []
    if isinstance(content, str):
        parts.append(Text(content))
    elif content is not None:
        for path, inner in objects(content, f"{where}.content"):
            parts += _parts(inner, path)
    return tuple(parts)


def _assistant(blocks: list[tuple[str, Fields]]) -> Message:
    parts: list[Part] = []
    calls: list[ToolCall] = []
    for where, block in blocks:
        match block.get("type"):
            case "thinking":
                signature = optional(block, "signature", str, where) or ""
                parts.append(Reasoning(required(block, "thinking", str, where), signature))
            case "redacted_thinking":
                parts.append(Reasoning("", REDACTED + required(block, "data", str, where)))
            case "tool_use":
                arguments = dumped(optional(block, "input", dict, where) or {}).decode()
                id, name = required(block, "id", str, where), required(block, "name", str, where)
                calls.append(ToolCall(id, name, arguments))
            case _:
                parts += _parts(block, where)
    return Message("assistant", tuple(parts), tuple(calls))


def _parts(block: Fields, where: str) -> list[Part]:
    """What a block says that may stand in anyone's turn."""
    kind = required(block, "type", str, where)
    if kind == "text":
        return [_text(block, where)]
    if kind == "image":
        return [Media("image", _url(required(block, "source", dict, where), f"{where}.source"))]
    if kind == "document":
        return _document(block, where)
    raise bad_request(f"'{where}' is a '{kind}' block, which engines here cannot be given")


def _document(block: Fields, where: str) -> list[Part]:
    """A document of text is text, under its title; any other a file of that name."""
    if (optional(block, "citations", dict, where) or {}).get("enabled"):
        raise bad_request(f"'{where}.citations': engines here cite nothing; leave it out")
    title = optional(block, "title", str, where) or ""
    about = [Text(text + "\n\n") for text in (title, optional(block, "context", str, where)) if text]
    source, path = required(block, "source", dict, where), f"{where}.source"
    if source.get("type") == "text":
        return [*about, Text(required(source, "data", str, path))]
    if source.get("type") == "content":
        content = source.get("content")
        if isinstance(content, str):
            return [*about, Text(content)]
        return [*about, *(part for at, inner in objects(content, f"{path}.content") for part in _parts(inner, at))]
    return [*about[bool(title) :], Media("file", _url(source, path), {"filename": title} if title else {})]


def _url(source: Fields, where: str) -> str:
    """Where media is: an address, or its bytes in a `data:` URL."""
    kind = required(source, "type", str, where)
    if kind == "url":
        url: str = required(source, "url", str, where)
        return url
    if kind != "base64":
        raise bad_request(f"'{where}.type' must be base64 or url, not '{kind}'")
    return data_url(required(source, "media_type", str, where), required(source, "data", str, where))
