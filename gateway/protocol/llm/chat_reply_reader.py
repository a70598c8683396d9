"""Replies of an engine that answers as OpenAI's chat completions do, read.

What a model refuses by is text, and its reason content_filter, as other dialects have it.

Sources: OpenAI API reference; `reasoning_content` of vLLM, SGLang, llama.cpp and DeepSeek, `reasoning` of vLLM, Ollama,
LM Studio and OpenRouter; Mistral's parts of content.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Event, ReasoningDelta, TextDelta, ToolCallDelta
from gateway.protocol.llm.openai_reply_reader import OpenAIReplyReader, text_of
from gateway.protocol.llm.request_fields import Fields

__all__ = ["ChatReplyReader"]


class ChatReplyReader(OpenAIReplyReader):
    """Reads one reply."""

    _whole_key = "message"
    _chunk_key = "delta"

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, _Calls] = {}
        self._refused: set[int] = set()

    def _more(self, index: int, told: Fields, choice: Fields, events: list[Event]) -> None:
        thought = told.get("reasoning_content") or told.get("reasoning")
        if isinstance(thought, str) and thought:
            events.append(ReasoningDelta(thought, index))
        content = told.get("content")
        if content and not isinstance(content, str):
            content = _from_parts(content, index, events)
        logprobs = _logprobs(choice.get("logprobs"))
        if refusal := text_of(told.get("refusal")):
            self._refused.add(index)
            events.append(TextDelta(refusal, index, logprobs))
        elif content or logprobs:
            events.append(TextDelta(content or "", index, logprobs))
        if calls := told.get("tool_calls"):
            self._calls.setdefault(index, _Calls()).read(calls, index, events)
        elif function := told.get("function_call"):
            self._calls.setdefault(index, _Calls()).read([{"index": 0, "function": function}], index, events)

    def _reason(self, index: int, reason: str) -> str:
        """Some engines say stop where the model has called a tool, too."""
        if reason == "stop" and index in self._refused:
            return "content_filter"
        if reason == "stop" and index in self._calls:
            return "tool_calls"
        return super()._reason(index, reason)


class _Calls:
    """The tool calls of one choice. Engines number them, or give each a new id, or send them whole, one for one."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}  # by the engine's number
        self._ids: list[str] = []  # by position

    def read(self, calls: Any, index: int, events: list[Event]) -> None:
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "a tool call of the engine's reply has no 'function'")
            id, name = text_of(call.get("id")), text_of(function.get("name"))
            position, is_new = self._position(call.get("index"), id, name)
            arguments = function.get("arguments") or ""
            if not isinstance(arguments, str):
                arguments = orjson.dumps(arguments).decode()
            if is_new:
                events.append(ToolCallDelta(position, id, name, arguments, index))
            elif arguments:
                events.append(ToolCallDelta(position, arguments=arguments, index=index))

    def _position(self, number: Any, id: str, name: str) -> tuple[int, bool]:
        """Which call it is, and whether it is new."""
        num_calls = len(self._ids)
        if type(number) is not int:
            is_new = bool(name) or not num_calls
            position = num_calls if is_new else num_calls - 1
        else:
            position = self._positions.get(number, num_calls)
            if position < num_calls and id and name and id != self._ids[position]:
                position = num_calls  # one number for all of them, as Ollama once had it
            self._positions[number] = position
            is_new = position == num_calls
        if is_new:
            self._ids.append(id)
        return position, is_new


def _from_parts(content: Any, index: int, events: list[Event]) -> str:
    """The text of content in parts; thoughts among them are told."""
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "thinking":
            thought = part.get("thinking")
            inner = thought if isinstance(thought, list) else [{"text": thought}]
            text = "".join([text_of(piece.get("text")) for piece in inner if isinstance(piece, dict)])
            events.append(ReasoningDelta(text, index))
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "".join(texts)


def _logprobs(told: Any) -> list[Fields] | None:
    if not told or not isinstance(told, dict):
        return None
    found = told.get("content") or told.get("refusal")
    return found if isinstance(found, list) else None
