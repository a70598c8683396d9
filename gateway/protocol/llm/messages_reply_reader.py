"""Replies of an engine that answers as Anthropic's messages do, read.

Source: Anthropic API reference, "Create a Message" and "Streaming Messages".
"""

from __future__ import annotations

import orjson

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    Used,
)
from gateway.protocol.llm.json_fields import Fields, misunderstood, text_in
from gateway.protocol.llm.messages_request_reader import REDACTED
from gateway.protocol.llm.reply_reader import JsonReplyReader
from gateway.protocol.llm.usage import read_usage

_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
# Of errors amid a stream, which have no status of their own.
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def _started(message: Fields) -> Started:
    return Started(text_in(message, "id"), text_in(message, "model"))


def _finished(fields: Fields) -> Finished:
    return Finished(_REASONS.get(text_in(fields, "stop_reason"), "stop"), 0, text_in(fields, "stop_sequence") or None)


class MessagesReplyReader(JsonReplyReader):
    """Reads one reply."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, int] = {}  # index of an engine's block -> position of the call
        self._arguments: dict[int, bytes] = {}  # of calls of which no argument has come: those of the block's start
        self._usage: Fields = {}
        self._has_finished = False

    def end(self) -> list[Event]:
        if self._is_over or not self._has_finished:
            return []
        self._is_over = True
        return [read_usage(self._usage) or Used()]

    def _read_whole(self, fields: Fields, events: list[Event]) -> None:
        if fields.get("type") == "error" or "error" in fields:
            events.append(_failed(fields))
            return
        if not isinstance(fields.get("content"), list):
            raise misunderstood("a message has 'content'")
        events.append(_started(fields))
        for at, block in enumerate(fields["content"]):
            self._start(at, block, events)
            self._stop(at, events)
        events += _finished(fields), read_usage(fields.get("usage")) or Used()

    def _read(self, fields: Fields, events: list[Event]) -> None:
        match fields.get("type"):
            case "content_block_delta":
                self._more(fields.get("index", 0), fields.get("delta") or {}, events)
            case "content_block_start":
                self._start(fields.get("index", 0), fields.get("content_block") or {}, events)
            case "content_block_stop":
                self._stop(fields.get("index", 0), events)
            case "message_start":
                message = fields.get("message") or {}
                self._count(message)
                events.append(_started(message))
            case "message_delta":
                self._count(fields)
                delta = fields.get("delta") or {}
                if delta.get("stop_reason") is not None and not self._has_finished:
                    self._has_finished = True
                    events.append(_finished(delta))
            case "message_stop":
                events += self.end()
            case "error":
                self._is_over = True
                events.append(_failed(fields))

    def _count(self, fields: Fields) -> None:
        """Keeps what is counted; later counts are of the whole message."""
        self._usage |= {name: count for name, count in (fields.get("usage") or {}).items() if count is not None}

    def _more(self, index: int, delta: Fields, events: list[Event]) -> None:
        match delta.get("type"):
            case "text_delta":
                events.append(TextDelta(text_in(delta, "text")))
            case "input_json_delta" if index in self._calls:
                if arguments := text_in(delta, "partial_json"):
                    self._arguments.pop(index, None)
                    events.append(ToolCallDelta(self._calls[index], arguments=arguments))
            case "thinking_delta":
                events.append(ReasoningDelta(text_in(delta, "thinking")))
            case "signature_delta":
                events.append(ReasoningDelta("", signature=text_in(delta, "signature")))

    def _start(self, index: int, block: Fields, events: list[Event]) -> None:
        match block.get("type"):
            case "text":
                if text := text_in(block, "text"):
                    events.append(TextDelta(text))
            case "thinking":
                reasoning, signature = text_in(block, "thinking"), text_in(block, "signature")
                if reasoning or signature:
                    events.append(ReasoningDelta(reasoning, 0, signature))
            case "redacted_thinking":
                events.append(ReasoningDelta("", signature=REDACTED + text_in(block, "data")))
            case "tool_use":
                self._calls[index] = len(self._calls)
                self._arguments[index] = orjson.dumps(block.get("input") or {})
                events.append(ToolCallDelta(self._calls[index], text_in(block, "id"), text_in(block, "name")))

    def _stop(self, index: int, events: list[Event]) -> None:
        """A call of which no argument came has those of its start: other APIs need JSON even where it has none."""
        arguments = self._arguments.pop(index, None)
        if arguments is not None:
            events.append(ToolCallDelta(self._calls[index], arguments=arguments.decode()))


def _failed(fields: Fields) -> EngineFailed:
    message, code = read_error(orjson.dumps(fields))
    return EngineFailed(message, _STATUSES.get(code, 500), code)
