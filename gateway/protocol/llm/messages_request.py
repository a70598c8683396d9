"""Requests of Anthropic's messages, read from clients and written for engines that take them (vLLM, llama.cpp, Ollama,
Anthropic itself).

Accepted without effect: `cache_control` and `eager_input_streaming` (engines cache prompts and stream on their own),
`service_tier` and `speed` where they say what is the default anyway, `context_management` (an engine that clears
nothing knows more, not less). Refused by name: tools of Anthropic's own, blocks that only its servers can make sense
of, files of its files API. Written: texts of `system` and `developer` messages move into `system`, and turns of the
same side become one; an image's `detail` is left out, since engines without it take all of the image.

Source: Anthropic API reference, "Create a Message".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.protocol.llm.canonical import (
    Generation,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    data_url,
    distinguishes_by_name,
)
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
from gateway.protocol.llm.json_mode import json_tool_choice, json_tool_of
from gateway.protocol.llm.messages_turns import (
    ENGINE,
    FAILED_RESULT,
    REDACTED,
    SYSTEM_ROLES,
    written_block,
    written_turns,
)
from gateway.protocol.llm.openai_options import read_tool, with_others
from gateway.protocol.llm.sampling_fields import SAMPLING_FIELDS, accepted_by
from gateway.protocol.operations import LlmApi

_SAME_NAME = {field.name: field.type.json_type for field in SAMPLING_FIELDS if LlmApi.MESSAGES in field.apis}
_TOOL_FIELDS = {"name", "description", "input_schema", "type", "strict", "cache_control", "eager_input_streaming"}
_CHAT_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_READ_ELSEWHERE = {
    *_SAME_NAME,
    *("model", "messages", "system", "tools", "stream", "cache_control"),
    *("stop_sequences", "metadata", "thinking", "output_config", "tool_choice", "context_management"),
}
_WITHOUT_EFFECT: Mapping[str, Sequence[Any]] = {
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "mcp_servers": ([],),
}


def read_request(body: bytes) -> Generation:
    """What a client asks of `/v1/messages`."""
    fields = read_fields(body)
    required(fields, "model", str)
    if fields.get("max_tokens") is None:
        what = "'max_tokens' is missing; Anthropic's messages require it: how many tokens to generate at most"
        raise bad_request(what)
    return _generation(fields)


def read_count_request(body: bytes) -> Generation:
    """What a client asks of `/v1/messages/count_tokens`: the same without `max_tokens`."""
    return _generation(read_fields(body))


def _generation(fields: Fields) -> Generation:
    model = required(fields, "model", str)
    options = _options(fields)
    messages = [*_system(fields.get("system")), *_messages(required(fields, "messages", list))]
    if not fields["messages"]:
        raise bad_request("'messages' must hold at least one message")
    tools = tuple(_read_tool(tool, where) for where, tool in objects(fields.get("tools") or [], "tools"))
    if not tools and options.get("tool_choice") in ("auto", "none"):
        del options["tool_choice"]
    stream = bool(optional(fields, "stream", bool))
    options = with_others(options, fields, _READ_ELSEWHERE, _WITHOUT_EFFECT)
    return Generation(model, None, tuple(messages), tools, options, stream, include_usage=stream)


def _options(fields: Fields) -> dict[str, Any]:
    """The options among these fields, by their canonical names."""
    options: dict[str, Any] = {}
    for name, kind in _SAME_NAME.items():
        if optional(fields, name, kind) is not None:
            options[name] = fields[name]
    if fields.get("stop_sequences"):
        options["stop"] = texts(fields["stop_sequences"], "stop_sequences")
    metadata = dict(optional(fields, "metadata", dict) or {})
    if optional(metadata, "user_id", str, "metadata") is not None:
        options["user"] = metadata["user_id"]
    metadata.pop("user_id", None)
    if metadata:
        options["metadata"] = metadata
    options |= _thinking(optional(fields, "thinking", dict))
    options |= _read_output(optional(fields, "output_config", dict) or {})
    return options | _read_tool_choice(optional(fields, "tool_choice", dict))


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


def _read_output(config: Fields) -> dict[str, Any]:
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


def _read_tool_choice(choice: Fields | None) -> dict[str, Any]:
    if choice is None:
        return {}
    options: dict[str, Any] = {}
    kind = required(choice, "type", str, "tool_choice")
    if kind == "tool":
        name = required(choice, "name", str, "tool_choice")
        options["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in _CHAT_CHOICES:
        options["tool_choice"] = _CHAT_CHOICES[kind]
    else:
        raise bad_request(f"'tool_choice.type' must be auto, any, tool or none, not '{kind}'")
    if optional(choice, "disable_parallel_tool_use", bool, "tool_choice"):
        options["parallel_tool_calls"] = False
    return options


def _read_tool(tool: Fields, where: str) -> Tool:
    kind = tool.get("type")
    if kind in (None, "custom"):
        return read_tool(tool, where, _TOOL_FIELDS, required(tool, "input_schema", dict, where))
    what = f"'{where}' is a '{kind}', a tool of Anthropic's own; engines here take tools with an 'input_schema' alone"
    raise bad_request(what)


def _system(system: Any) -> list[Message]:
    if system is None or isinstance(system, str):
        return [Message("system", (Text(system),))] if system else []
    parts = tuple(_text(block, where) for where, block in objects(system, "system"))
    return [Message("system", parts)] if parts else []


def _text(block: Fields, where: str) -> Text:
    if block.get("type") != "text":
        raise bad_request(f"'{where}.type' must be text")
    return Text(required(block, "text", str, where))


def _messages(value: list[Any]) -> list[Message]:
    messages: list[Message] = []
    for where, message in objects(value, "messages"):
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
    parts = [] if content is None else _content(content, f"{where}.content")
    return (FAILED_RESULT, *parts) if optional(block, "is_error", bool, where) else tuple(parts)


def _content(content: Any, where: str) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    return [part for at, block in objects(content, where) for part in _parts(block, at)]


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
        return [*about, *_content(source.get("content"), f"{path}.content")]
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


# The API requires a bound where others have none: room for a long answer, within what small models' contexts hold.
DEFAULT_MAX_TOKENS = 4096

_KNOWN = {
    *_SAME_NAME,
    *("stop", "user", "tool_choice", "parallel_tool_calls"),
    *("thinking_tokens", "reasoning_effort", "response_format"),
}
_CHOICES = {chat: own for own, chat in _CHAT_CHOICES.items()}
_EFFORTS = {"minimal": "low"}


def write_request(generation: Generation, *, model: str, drop: bool) -> tuple[bytes, list[str]]:
    """The body for `/v1/messages`, and the names of the dropped options. Without `max_tokens` it asks for
    DEFAULT_MAX_TOKENS, beyond the budget for thinking.

    Raises: GatewayError(UNSUPPORTED) that names what the API has no place for; GatewayError(BAD_REQUEST) where a
    call's arguments are not a JSON object.
    """
    options, lost = accepted_by(_requested_options(generation), _KNOWN, engine=ENGINE, drop=drop)
    body: dict[str, Any] = {"model": model}
    instructions = [part for message in generation.messages if message.role in SYSTEM_ROLES for part in message.parts]
    system = [written_block(part) for part in instructions if isinstance(part, Text) and part.text]
    if system:
        body["system"] = system[0]["text"] if len(system) == 1 else system
    body["messages"] = written_turns(generation)
    budget = options.get("thinking_tokens") or 0
    body["max_tokens"] = options.get("max_tokens", DEFAULT_MAX_TOKENS + budget)
    body |= {name: options[name] for name in _SAME_NAME if name in options}
    if "stop" in options:
        body["stop_sequences"] = options["stop"]
    if user := generation.options.get("user") or generation.options.get("safety_identifier"):
        body["metadata"] = {"user_id": user}
    if budget:
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    elif "thinking_tokens" in options or options.get("reasoning_effort") == "none":
        body["thinking"] = {"type": "disabled"}
    body |= _output(options)
    tools = generation.tools
    if json_tool := json_tool_of(generation):
        tools += (json_tool,)
        options["tool_choice"] = json_tool_choice(generation, json_tool)
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
        body |= _tool_choice(options)
    if generation.stream:
        body["stream"] = True
    return dumped(body), lost


def _requested_options(generation: Generation) -> dict[str, Any]:
    """The options, and under names of their own what else the API may have no place for."""
    requested_options = dict(generation.options)
    form = requested_options.get("response_format")
    if form is not None and form.get("type") not in ("json_schema", "json_object"):
        requested_options[f"response_format {form.get('type')}"] = requested_options.pop("response_format")
    if distinguishes_by_name(generation.messages):
        requested_options["messages.name"] = True
    return requested_options


def _output(options: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    effort = options.get("reasoning_effort", "none")
    if effort != "none":
        config["effort"] = _EFFORTS.get(effort, effort)
    if options.get("response_format", {}).get("type") == "json_schema":
        schema = options["response_format"].get("json_schema", {}).get("schema", {})
        config["format"] = {"type": "json_schema", "schema": schema}
    return {"output_config": config} if config else {}


def _tool(tool: Tool) -> dict[str, Any]:
    description = {"description": tool.description} if tool.description else {}
    written = {"name": tool.name, **description, "input_schema": {"type": "object", **tool.parameters}}
    return written if tool.strict is None else {**written, "strict": tool.strict}


def _tool_choice(options: Mapping[str, Any]) -> dict[str, Any]:
    requested = options.get("tool_choice")
    choice: dict[str, Any] | None = None
    if isinstance(requested, dict):
        choice = {"type": "tool", "name": requested.get("function", {}).get("name", "")}
    elif requested is not None:
        if requested not in _CHOICES:
            raise bad_request(f"'tool_choice' must be auto, none, required or a function, not '{requested}'")
        choice = {"type": _CHOICES[requested]}
    if options.get("parallel_tool_calls") is False and requested != "none":
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    return {"tool_choice": choice} if choice else {}
