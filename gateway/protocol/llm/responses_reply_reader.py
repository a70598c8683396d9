"""Replies of an engine that answers as OpenAI's responses do, read.

Source: OpenAI API reference, "Responses" and "Streaming events".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
)
from gateway.protocol.llm.json_fields import Fields, misunderstood, text_in
from gateway.protocol.llm.reply_reader import JsonReplyReader
from gateway.protocol.llm.usage import read_usage

# Of failures, which have no status of their own.
_STATUSES = {"rate_limit_exceeded": 429, "invalid_prompt": 400, "context_length_exceeded": 400}
_IMAGES_FAULT = 400  # all other codes but server_error say what is wrong with an image


def _failed(error: Fields) -> EngineFailed:
    message, code = read_error(orjson.dumps({"error": error}))
    return EngineFailed(message, _STATUSES.get(code, _IMAGES_FAULT if "image" in code else 500), code)


def _logprobs(given: Sequence[Mapping[str, Any]] | None) -> list[Fields] | None:
    """In chat's form, in which `bytes` is never missing; none where none were asked."""
    if not given:
        return None
    return [
        {**_logprob(fields), "top_logprobs": [_logprob(top) for top in fields.get("top_logprobs") or ()]}
        for fields in given
    ]


def _logprob(fields: Mapping[str, Any]) -> Fields:
    return {"token": text_in(fields, "token"), "logprob": fields.get("logprob"), "bytes": fields.get("bytes")}


class ResponsesReplyReader(JsonReplyReader):
    """Reads one reply."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, int] = {}  # index of an engine's item -> position of the call
        self._silent: set[int] = set()  # calls of which no argument has come

    def _read_whole(self, fields: Fields, events: list[Event]) -> None:
        error = fields.get("error")
        if error:
            events.append(_failed(error if isinstance(error, dict) else {"message": error}))
        elif fields.get("status") in ("failed", "cancelled"):
            events.append(EngineFailed(f"the engine's response is {fields['status']}", 500, "server_error"))
        elif not isinstance(fields.get("output"), list):
            raise misunderstood("a response has 'output'")
        else:
            events.append(_started(fields))
            for at, item in enumerate(fields["output"]):
                self._item(at, item, events)
            self._close(fields, events)

    def _read(self, fields: Fields, events: list[Event]) -> None:
        match fields.get("type"):
            case "response.output_text.delta":
                events.append(TextDelta(text_in(fields, "delta"), 0, _logprobs(fields.get("logprobs"))))
            case "response.refusal.delta":
                events.append(TextDelta(text_in(fields, "delta")))
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                events.append(ReasoningDelta(text_in(fields, "delta")))
            case "response.function_call_arguments.delta":
                self._arguments(fields.get("output_index", 0), text_in(fields, "delta"), events)
            case "response.output_item.added":
                self._added(fields.get("output_index", 0), fields.get("item") or {}, events)
            case "response.output_item.done":
                self._finish_item(fields.get("output_index", 0), fields.get("item") or {}, events)
            case "response.created":
                events.append(_started(fields.get("response") or {}))
            case "response.completed" | "response.incomplete":
                self._close(fields.get("response") or {}, events)
            case "response.failed" | "error":
                self._is_over = True
                error = (fields.get("response") or fields).get("error")
                events.append(_failed(error if isinstance(error, dict) else {**fields, "error": None}))

    def _added(self, index: int, item: Fields, events: list[Event]) -> None:
        if item.get("type") == "function_call" and index not in self._calls:
            self._calls[index] = len(self._calls)
            self._silent.add(index)
            id = text_in(item, "call_id") or text_in(item, "id")
            events.append(ToolCallDelta(self._calls[index], id, text_in(item, "name")))

    def _arguments(self, index: int, arguments: str, events: list[Event]) -> None:
        if arguments and index in self._calls:
            self._silent.discard(index)
            events.append(ToolCallDelta(self._calls[index], arguments=arguments))

    def _finish_item(self, index: int, item: Fields, events: list[Event]) -> None:
        """What an item says only at its end."""
        if item.get("type") == "function_call":
            self._added(index, item, events)
            if index in self._silent:
                self._arguments(index, text_in(item, "arguments") or "{}", events)
        elif item.get("type") == "reasoning" and (signature := text_in(item, "encrypted_content")):
            events.append(ReasoningDelta("", signature=signature))

    def _item(self, index: int, item: Fields, events: list[Event]) -> None:
        """All that an item of a whole response says."""
        if item.get("type") == "message":
            for part in item.get("content") or ():
                text = text_in(part, "refusal") or text_in(part, "text")
                events.append(TextDelta(text, 0, _logprobs(part.get("logprobs"))))
        elif item.get("type") == "reasoning":
            parts = item.get("content") or item.get("summary") or ()
            text = "\n\n".join([text_in(part, "text") for part in parts])
            if text:
                events.append(ReasoningDelta(text))
        self._finish_item(index, item, events)

    def _close(self, response: Fields, events: list[Event]) -> None:
        self._is_over = True
        reason = (response.get("incomplete_details") or {}).get("reason")
        if reason is not None or response.get("status") == "incomplete":
            events.append(Finished("content_filter" if reason == "content_filter" else "length"))
        else:
            events.append(Finished("tool_calls" if self._calls else "stop"))
        used = read_usage(response.get("usage"))
        if used is not None:
            events.append(used)


def _started(response: Fields) -> Started:
    return Started(text_in(response, "id"), text_in(response, "model"), int(response.get("created_at") or 0))
