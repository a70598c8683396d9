"""Parses a request's tensors and parameters.

Source: Triton's vLLM backend, `src/utils/request.py` (_get_input_tensors); the schedule policy extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from engines.backends.interfaces import BackendRequest
from engines.backends.paged.chat import Chat, ChatValue, chat_value
from engines.core.errors import EngineError, ErrorCode, invalid
from engines.core.messages import Scalar
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.chat_request import read_messages
from gateway.protocol.llm.openai_options import read_tools

# Request parameters that are no sampling fields.
ADAPTERS = ("adapter", "lora_name")
# The level of requests without one: level 1 goes before it, level 200 after it.
DEFAULT_LEVEL = 100
_OWN = {*ADAPTERS, "cache_salt", "priority", "timeout", "tell_at_end", "count_tokens"}
# Of chats.
_TEMPLATING = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
_PROMPTS = ("text_input", "messages", "input_ids")
_NO_PROMPT = (
    "one of 'text_input' (the prompt as text), 'messages' (a chat, as JSON in OpenAI's form) and 'input_ids' (the "
    "prompt as token ids) must be given"
)
_LISTS = "[{"
# vLLM's backend has these as JSON in the JSON.
_GUIDES = ("structured_outputs", "guided_decoding")
_MICROSECONDS = 1e6


Prompt = str | tuple[int, ...] | Chat


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """One request. `fields` are sampling fields, unparsed. A higher `priority` goes first. `timeout_seconds` None: no
    limit."""

    prompt: Prompt
    fields: Mapping[str, Any]
    streams: bool = False
    repeats_prompt: bool = False
    outputs: frozenset[str] = frozenset()  # names of outputs beside the text
    defers_outputs: bool = False  # ... sent at a choice's end, except those that belong to tokens
    adapter: str | None = None
    cache_salt: str = ""
    priority: int = 0
    timeout_seconds: float | None = None
    adds_special_tokens: bool = True  # to a text
    only_counts: bool = False  # the tokens of the prompt, without an answer


def read_request(request: BackendRequest) -> ParsedRequest:
    """Raises: EngineError that names the tensor or the field, and what it has to be."""
    inputs, parameters = request.inputs, request.parameters
    fields = _sampling_fields(inputs, parameters)
    own = {name: fields.pop(name) for name in (*ADAPTERS, "cache_salt") if fields.get(name) is not None}
    own |= {name: value for name, value in parameters.items() if name in _OWN}
    streams = _flag(inputs, "stream", False)
    repeats_prompt = not _flag(inputs, "exclude_input_in_output", streams)
    if streams and repeats_prompt:
        raise invalid("When streaming, `exclude_input_in_output` = False is not allowed.")
    adds_special_tokens = _checked(fields.pop("add_special_tokens", None), bool, "add_special_tokens", True)
    level = request.priority or _checked(own.get("priority"), int, "priority", 0)
    timeout_us = request.timeout_us or _checked(own.get("timeout"), int, "timeout", 0)
    return ParsedRequest(
        prompt=_prompt(request, fields),
        fields=fields,
        streams=streams,
        repeats_prompt=repeats_prompt,
        outputs=frozenset(
            name.removeprefix("return_") for name in inputs if name.startswith("return_") and _flag(inputs, name, False)
        ),
        defers_outputs=bool(own.get("tell_at_end", False)),
        adapter=_adapter(own),
        cache_salt=_checked(own.get("cache_salt"), str, "cache_salt", ""),
        priority=DEFAULT_LEVEL - level if level > 0 else 0,
        timeout_seconds=timeout_us / _MICROSECONDS if timeout_us > 0 else None,
        adds_special_tokens=adds_special_tokens,
        only_counts=bool(own.get("count_tokens", False)),
    )


def _prompt(request: BackendRequest, fields: dict[str, Any]) -> Prompt:
    """The prompt; options of a chat template are taken out of `fields`."""
    if request.chat is not None:
        return _chat(request.chat, fields)
    inputs = request.inputs
    named = [name for name in _PROMPTS if name in inputs]
    if len(named) != 1:
        raise invalid(_NO_PROMPT if not named else f"{' and '.join(map(repr, named))} are given; {_NO_PROMPT}")
    match named[0]:
        case "text_input":
            return _text(inputs, "text_input")
        case "input_ids":
            return tuple(np.asarray(inputs["input_ids"]).ravel().tolist())
        case _:
            return _chat(_read_chat(inputs), fields)


def _read_chat(inputs: Mapping[str, Any]) -> ChatValue:
    """A conversation as JSON, from a V2 client."""
    try:
        messages = read_messages(_json(inputs, "messages"))
        tools = read_tools({"tools": _json(inputs, "tools")}) if "tools" in inputs else ()
    except GatewayError as error:
        code = ErrorCode.UNSUPPORTED if error.kind is ErrorKind.UNSUPPORTED else ErrorCode.INVALID_ARG
        raise EngineError(code, error.message) from error
    return chat_value(messages, tools)


def _chat(value: ChatValue, fields: dict[str, Any]) -> Chat:
    options = {name: fields.pop(name, None) for name in _TEMPLATING}
    return Chat(
        value["messages"],
        value["tools"],
        _checked(options["continue_final_message"], bool, "continue_final_message", False),
        _checked(options["add_generation_prompt"], bool, "add_generation_prompt", True),
        _checked(options["chat_template_kwargs"], dict, "chat_template_kwargs", {}),
    )


def _sampling_fields(inputs: Mapping[str, Any], parameters: Mapping[str, Scalar]) -> dict[str, Any]:
    """Those of the JSON text, else the request's parameters: scalars, with lists and maps as JSON."""
    if "sampling_parameters" not in inputs:
        return {name: _structured(value) for name, value in parameters.items() if name not in _OWN}
    parsed = _json(inputs, "sampling_parameters") if _text(inputs, "sampling_parameters").strip() else {}
    if not isinstance(parsed, dict):
        raise invalid("'sampling_parameters' must be the text of a JSON object")
    return parsed | {name: _structured(parsed[name]) for name in _GUIDES if name in parsed}


def _structured(value: Scalar) -> Any:
    if isinstance(value, str) and value[:1] in _LISTS and value:
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _adapter(own: Mapping[str, Any]) -> str | None:
    values = [_checked(own[name], str, name, "") for name in ADAPTERS if name in own]
    if len(set(values)) > 1:
        raise invalid(f"'adapter' and 'lora_name' name two adapters, {values[0]} and {values[1]}; give one")
    return values[0] or None if values else None


def _text(inputs: Mapping[str, Any], name: str) -> str:
    element = np.asarray(inputs[name]).ravel()[0]
    try:
        return element.decode() if isinstance(element, bytes) else str(element)
    except UnicodeDecodeError as error:
        raise invalid(f"'{name}' is no text in UTF-8: {error.reason} at byte {error.start}") from None


def _json(inputs: Mapping[str, Any], name: str) -> Any:
    try:
        return orjson.loads(_text(inputs, name))
    except orjson.JSONDecodeError as error:
        raise invalid(f"'{name}' is no JSON: {error}") from None


def _flag(inputs: Mapping[str, Any], name: str, default: bool) -> bool:
    return bool(np.asarray(inputs[name]).ravel()[0]) if name in inputs else default


_IN_WORDS = {bool: "true or false", int: "a whole number", str: "a text", dict: "an object"}


def _checked(value: Any, kind: type, name: str, default: Any) -> Any:
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise invalid(f"'{name}' must be {_IN_WORDS[kind]}")
    return value
