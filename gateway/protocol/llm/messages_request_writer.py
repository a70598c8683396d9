"""Requests of Anthropic's messages, written for an engine that takes them (vLLM, llama.cpp, Ollama, Anthropic itself).

Texts of `system` and `developer` messages move into `system`, and turns of the same side become one.

Source: Anthropic API reference, "Create a Message".
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.canonical import (
    Generation,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    split_data_url,
)
from gateway.protocol.llm.json_fields import bad_request, dumped
from gateway.protocol.llm.messages_request_reader import FAILED_RESULT, REDACTED
from gateway.protocol.llm.sampling_fields import SAMPLING_FIELDS, accepted_by
from gateway.protocol.operations import LlmApi

ENGINE = "an Anthropic messages engine"
# The API requires a bound where others have none: room for a long answer, within what small models' contexts hold.
DEFAULT_MAX_TOKENS = 4096

_AS_THEY_ARE = [field.name for field in SAMPLING_FIELDS if LlmApi.MESSAGES in field.apis]
_KNOWN = {
    *_AS_THEY_ARE,
    *("stop", "user", "tool_choice", "parallel_tool_calls"),
    *("thinking_tokens", "reasoning_effort", "response_format"),
}
_SYSTEM = ("system", "developer")
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_EFFORTS = {"minimal": "low"}


def write_request(generation: Generation, *, model: str, drop: bool) -> tuple[bytes, list[str]]:
    """The body for `/v1/messages`, and the names of the dropped options. Without `max_tokens` it asks for
    DEFAULT_MAX_TOKENS, beyond the budget for thinking.

    Raises: GatewayError(UNSUPPORTED) that names what the API has no place for; GatewayError(BAD_REQUEST) where a
    call's arguments are not a JSON object.
    """
    options, lost = accepted_by(_requested_options(generation), _KNOWN, engine=ENGINE, drop=drop)
    body: dict[str, Any] = {"model": model}
    system = [block for message in generation.messages if message.role in _SYSTEM for block in _texts(message)]
    if system:
        body["system"] = system[0]["text"] if len(system) == 1 else system
    body["messages"] = _turns(generation)
    budget = options.get("thinking_tokens") or 0
    body["max_tokens"] = options.get("max_tokens", DEFAULT_MAX_TOKENS + budget)
    body |= {name: options[name] for name in _AS_THEY_ARE if name in options}
    if "stop" in options:
        body["stop_sequences"] = options["stop"]
    if "user" in options:
        body["metadata"] = {"user_id": options["user"]}
    if budget:
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    elif "thinking_tokens" in options or options.get("reasoning_effort") == "none":
        body["thinking"] = {"type": "disabled"}
    body |= _output(options)
    if generation.tools:
        body["tools"] = [_tool(tool) for tool in generation.tools]
        body |= _tool_choice(options)
    if generation.stream:
        body["stream"] = True
    return dumped(body), lost


def _requested_options(generation: Generation) -> dict[str, Any]:
    """The options, and under names of their own what else the API may have no place for."""
    requested_options = dict(generation.options)
    form = requested_options.get("response_format")
    if form is not None and form.get("type") != "json_schema":
        requested_options[f"response_format {form.get('type')}"] = requested_options.pop("response_format")
    if any(message.name and message.role != "tool" for message in generation.messages):
        requested_options["messages.name"] = True
    for message in generation.messages:
        for part in message.parts:
            if isinstance(part, Media) and part.kind == "image" and part.detail.get("detail", "auto") != "auto":
                requested_options["image_url.detail"] = part.detail["detail"]
    return requested_options


def _output(options: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    effort = options.get("reasoning_effort", "none")
    if effort != "none":
        config["effort"] = _EFFORTS.get(effort, effort)
    if "response_format" in options:
        schema = options["response_format"].get("json_schema", {}).get("schema", {})
        config["format"] = {"type": "json_schema", "schema": schema}
    return {"output_config": config} if config else {}


def _tool(tool: Tool) -> dict[str, Any]:
    written: dict[str, Any] = {"name": tool.name}
    if tool.description:
        written["description"] = tool.description
    written["input_schema"] = {"type": "object", **tool.parameters}
    if tool.strict is not None:
        written["strict"] = tool.strict
    return written


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


def _texts(message: Message) -> list[dict[str, Any]]:
    return [_block(part) for part in message.parts if isinstance(part, Text) and part.text]


def _turns(generation: Generation) -> list[dict[str, Any]]:
    """The messages, turn and turn about: results of tools are the user's."""
    if isinstance(generation.prompt, str):
        return [{"role": "user", "content": generation.prompt}]
    if generation.prompt is not None:
        raise unsupported(f"a prompt of token ids cannot be told to {ENGINE}; send text")
    turns: list[dict[str, Any]] = []
    for message in generation.messages:
        if message.role in _SYSTEM:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        match turn["content"]:
            case []:
                turn["content"] = ""
            case [{"type": "text", "text": text}]:
                turn["content"] = text
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    has_failed = message.role == "tool" and message.parts[:1] == (FAILED_RESULT,)
    parts = message.parts[has_failed:]
    blocks = [_block(part) for part in parts if not isinstance(part, Text) or part.text]
    if message.role != "tool":
        return blocks + [_tool_use(call) for call in message.tool_calls]
    content = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks or ""
    result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
    return [result | ({"is_error": True} if has_failed else {})]


def _tool_use(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments or "{}"
    try:
        is_object = isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if not is_object:
        raise bad_request(f"the arguments of the call '{call.id}' of '{call.name}' must be a JSON object, as text")
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": orjson.Fragment(arguments)}


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Reasoning):
        if part.signature.startswith(REDACTED):
            return {"type": "redacted_thinking", "data": part.signature.removeprefix(REDACTED)}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if part.kind == "image":
        return {"type": "image", "source": _source(part)}
    if part.kind == "file":
        title = part.detail.get("filename")
        return {"type": "document", "source": _source(part)} | ({"title": title} if title else {})
    raise unsupported(f"{part.kind} cannot be told to {ENGINE}")


def _source(media: Media) -> dict[str, Any]:
    inside = split_data_url(media.url)
    if inside is None:
        if not media.url.startswith(("http://", "https://")):
            raise bad_request(f"'{media.url[:40]}' is neither an http address nor a 'data:' URL in base64")
        return {"type": "url", "url": media.url}
    media_type, data = inside
    if media_type == "text/plain":
        try:
            text = base64.b64decode(data, validate=True).decode()
        except ValueError as error:
            raise bad_request("a file of text must be UTF-8, in base64") from error
        return {"type": "text", "media_type": media_type, "data": text}
    return {"type": "base64", "media_type": media_type, "data": data}
