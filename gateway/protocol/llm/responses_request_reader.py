"""Requests of OpenAI's responses, read.

The gateway keeps no responses: `previous_response_id`, `conversation`, `background` and references to items are
refused, and `store` is taken and told back as false. Taken, and of no effect: hints to OpenAI's caches
(`prompt_cache_*`), what to include of tools that only its servers run, `reasoning.summary` (what a model thinks is told
in full), `stream_options` (a stream is never padded). Tools that OpenAI's servers run are refused by name.

Source: OpenAI API reference, "Create a model response".
"""

from __future__ import annotations

from typing import Any

from gateway.protocol.llm.canonical import Generation, Message, Text, Tool
from gateway.protocol.llm.request_fields import (
    Fields,
    bad_request,
    checked,
    objects,
    optional,
    read_fields,
    required,
    texts,
)
from gateway.protocol.llm.responses_fields import response_format_of
from gateway.protocol.llm.responses_input_reader import read_input
from gateway.protocol.llm.sampling_fields import OPTIONS

_KEPT_NOWHERE = {
    "previous_response_id": "send the whole conversation as 'input'",
    "conversation": "send the whole conversation as 'input'",
    "prompt": "send the prompt itself as 'instructions' and 'input'",
}
# OpenAI's own fields; those that engines added are not checked here.
_SAME_NAME = ("temperature", "top_p", "parallel_tool_calls", "metadata", "user")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED_ANYWAY = {
    "reasoning.encrypted_content",  # an engine's signature, where it gives one
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
}
_WITHOUT_EFFECT = {"service_tier": ("auto", "default"), "truncation": ("disabled",)}
_TOOL_FIELDS = {"type", "name", "description", "parameters", "strict"}
_READ_ELSEWHERE = {
    *_SAME_NAME,
    *("model", "input", "instructions", "tools", "tool_choice", "stream", "stream_options", "max_output_tokens"),
    *("text", "reasoning", "include", "top_logprobs", "store", "background", "safety_identifier", "stop"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
}


def read_request(body: bytes) -> Generation:
    """What a client asks of `/v1/responses`.

    Raises: GatewayError(BAD_REQUEST) that names the field.
    """
    given = read_fields(body)
    for name, instead in _KEPT_NOWHERE.items():
        if given.get(name) is not None:
            raise bad_request(f"'{name}' cannot be had: this gateway keeps no responses; {instead}")
    if optional(given, "background", bool):
        raise bad_request("'background' cannot be true: this gateway keeps no responses; wait for it, or stream it")
    optional(given, "store", bool)
    model = required(given, "model", str)
    instructions = optional(given, "instructions", str)
    messages = [Message("system", (Text(instructions),))] if instructions else []
    if given.get("input") is None:
        raise bad_request("'input' is missing; it must be a string or a list of items")
    messages += read_input(given["input"])
    if not messages:
        raise bad_request("'input' must hold at least one item")
    tools = tuple(_tool(tool, where) for where, tool in objects(given.get("tools") or [], "tools"))
    stream = bool(optional(given, "stream", bool))
    return Generation(model, None, tuple(messages), tools, _options(given), stream, include_usage=stream)


def _options(given: Fields) -> dict[str, Any]:
    """The options among these fields by their canonical names, what is not known by its own."""
    fields = [OPTIONS[name] for name in _SAME_NAME]
    read = {field.name: optional(given, field.name, field.type.json_type) for field in fields}
    options = {field.name: read[field.name] for field in fields if read[field.name] not in (None, *field.idle)}
    if optional(given, "max_output_tokens", int) is not None:
        options["max_tokens"] = given["max_output_tokens"]
    if optional(given, "safety_identifier", str) is not None:  # what `user` is called now
        options.setdefault("user", given["safety_identifier"])
    if given.get("stop"):  # vLLM's
        options["stop"] = [given["stop"]] if isinstance(given["stop"], str) else texts(given["stop"], "stop")
    options |= _text(optional(given, "text", dict) or {})
    options |= _reasoning(optional(given, "reasoning", dict) or {})
    options |= _logprobs(given)
    choice = given.get("tool_choice")
    if choice is not None and (given.get("tools") or choice not in ("auto", "none")):
        options["tool_choice"] = _tool_choice(choice)
    for name, value in given.items():
        if name in _READ_ELSEWHERE or value is None or value in _WITHOUT_EFFECT.get(name, ()):
            continue
        options.setdefault(name, value)
    return options


def _text(text: Fields) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in text.items():
        if value is None or (name, value) == ("verbosity", "medium"):
            continue
        if name == "format":
            form = response_format_of(checked(value, dict, "text.format"))
            options |= {"response_format": form} if form else {}
        else:
            options["verbosity" if name == "verbosity" else f"text.{name}"] = value
    return options


def _reasoning(reasoning: Fields) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in reasoning.items():
        if name == "effort" and value is not None:
            options["reasoning_effort"] = checked(value, str, "reasoning.effort")
        elif value is not None and name not in ("summary", "generate_summary"):
            options[f"reasoning.{name}"] = value
    return options


def _logprobs(given: Fields) -> dict[str, Any]:
    include = texts(given.get("include") or [], "include")
    for name in include:
        if name not in _INCLUDED_ANYWAY and name != _LOGPROBS:
            raise bad_request(f"'include': '{name}' cannot be included")
    top = optional(given, "top_logprobs", int) or 0
    return {"logprobs": top} if top or _LOGPROBS in include else {}


def _tool_choice(choice: Any) -> Any:
    """Chat's form of it."""
    if choice in ("auto", "none", "required"):
        return choice
    if not isinstance(choice, dict) or choice.get("type") != "function":
        told = choice.get("type") if isinstance(choice, dict) else choice
        raise bad_request(f"'tool_choice' must be auto, none, required or a function, not '{told}'")
    return {"type": "function", "function": {"name": required(choice, "name", str, "tool_choice")}}


def _tool(tool: Fields, where: str) -> Tool:
    kind = required(tool, "type", str, where)
    if kind != "function":
        raise bad_request(f"'{where}' is of type '{kind}', which engines here do not run; they take functions alone")
    name = required(tool, "name", str, where)
    for field, value in tool.items():
        if value and field not in _TOOL_FIELDS and value != ["direct"]:
            raise bad_request(f"'{where}.{field}' (of tool '{name}') cannot be told to an engine; leave it out")
    description = optional(tool, "description", str, where) or ""
    parameters = optional(tool, "parameters", dict, where) or {}
    return Tool(name, description, parameters, optional(tool, "strict", bool, where))
