"""Replies of an engine that answers as Anthropic's messages do, read.

Source: Anthropic API reference, "Create a Message" and "Streaming Messages".
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.conversion.sse import SseReader
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
from gateway.protocol.llm.json_fields import MALFORMED, misunderstood, read_reply_fields, text_in
from gateway.protocol.llm.messages_request_reader import REDACTED
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


def _started(message: dict[str, Any]) -> Started:
    return Started(text_in(message, "id"), text_in(message, "model"))


def _finished(fields: dict[str, Any]) -> Finished:
    return Finished(_REASONS.get(text_in(fields, "stop_reason"), "stop"), 0, text_in(fields, "stop_sequence") or None)


class MessagesReplyReader:
    """Reads one reply; a stream's events come out with the engine's own, one for one."""

    def __init__(self) -> None:
        self._sse = SseReader()
        self._calls: dict[int, int] = {}  # index of an engine's block -> position of the call
        self._arguments: dict[int, bytes] = {}  # of calls of which no argument has come: those of the block's start
        self._usage: dict[str, Any] = {}
        self._has_finished = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"<MessagesReplyReader messages: {'over' if self._is_over else 'open'}, {len(self._calls)} calls>"

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes of a stream say.

        Raises: GatewayError(UPSTREAM_PROTOCOL) where they are no such stream.
        """
        events: list[Event] = []
        for message in self._sse.feed(data):
            if message != b"[DONE]":  # vLLM ends with it, as in OpenAI's APIs
                try:
                    self._read(read_reply_fields(message), events)
                except MALFORMED as error:
                    raise misunderstood(str(error)) from error
        return events

    def end(self) -> list[Event]:
        """What remains to be said; nothing where the stream broke off, so that no `Finished` has come."""
        if self._is_over or not self._has_finished:
            return []
        self._is_over = True
        return [read_usage(self._usage) or Used()]

    def whole(self, status: int, body: bytes) -> list[Event]:
        """What a whole reply says.

        Raises: GatewayError(UPSTREAM_PROTOCOL) where it is neither a message nor an error.
        """
        if status >= 400:
            message, code = read_error(body)
            return [EngineFailed(message, status, code)]
        fields = read_reply_fields(body)
        if fields.get("type") == "error" or "error" in fields:
            return [_failed(fields)]
        if not isinstance(fields.get("content"), list):
            raise misunderstood("a message has 'content'")
        events: list[Event] = [_started(fields)]
        try:
            for at, block in enumerate(fields["content"]):
                self._start(at, block, events)
                self._stop(at, events)
        except MALFORMED as error:
            raise misunderstood(str(error)) from error
        return [*events, _finished(fields), read_usage(fields.get("usage")) or Used()]

    def _read(self, fields: dict[str, Any], events: list[Event]) -> None:
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

    def _count(self, fields: dict[str, Any]) -> None:
        """Keeps what is counted; later counts are of the whole message."""
        self._usage |= {name: count for name, count in (fields.get("usage") or {}).items() if count is not None}

    def _more(self, index: int, delta: dict[str, Any], events: list[Event]) -> None:
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

    def _start(self, index: int, block: dict[str, Any], events: list[Event]) -> None:
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


def _failed(fields: dict[str, Any]) -> EngineFailed:
    message, code = read_error(orjson.dumps(fields))
    return EngineFailed(message, _STATUSES.get(code, 500), code)
