"""Replies as clients of Anthropic's messages read them.

Source: Anthropic API reference, "Create a Message" and "Streaming Messages".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    Used,
)
from gateway.protocol.llm.errors import anthropic_error
from gateway.protocol.llm.messages_request_reader import REDACTED

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
_DELTA_END = b"}}\n\n"


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def _usage(used: Used) -> dict[str, Any]:
    """Anthropic counts apart what the cache held."""
    usage: dict[str, Any] = {
        "input_tokens": used.prompt - used.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.completion,
    }
    if used.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": used.reasoning}
    return usage


def _input(arguments: str) -> Any:
    """A call's arguments as the object that they are; in Anthropic's own wrapper where the model wrote none."""
    try:
        is_object = isinstance(orjson.loads(arguments or "{}"), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return orjson.Fragment(arguments or "{}") if is_object else {"INVALID_JSON": arguments}


class MessagesReplyWriter:
    """Writes one reply: of the choices of one that has several, the first.

    In a stream, deltas go out as they come; `message_delta` waits for the usage, which engines tell last.
    """

    content_type = "text/event-stream"

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        self._id, self._model = id, model or generation.model
        self._has_started = self._has_pinged = self._is_over = False
        self._open = ""  # type of the block that is open
        self._index = -1  # of the last block
        self._prefix = b""  # of a delta of the open block
        self._calls: dict[int, int] = {}  # position of a call -> index of its block
        self._finished: Finished | None = None
        self._used = Used()

    def __repr__(self) -> str:
        return f"<MessagesReplyWriter messages: {self._index + 1} blocks, {'over' if self._is_over else 'open'}>"

    def feed(self, events: Sequence[Event]) -> bytes:
        """The events of the stream that tell these."""
        out: list[bytes] = []
        for event in events:
            if type(event) is TextDelta and self._open == "text" and not event.index:
                if event.text:
                    out += (self._prefix, orjson.dumps(event.text), _DELTA_END)
            else:
                self._write_event(event, out)
        return b"".join(out)

    def end(self) -> bytes:
        """How the message ends, where that is not told yet."""
        out: list[bytes] = []
        if not self._is_over:
            self._close_message(out)
        return b"".join(out)

    def whole(self, events: Sequence[Event]) -> tuple[int, bytes]:
        """The status and the message that tell these."""
        blocks: list[dict[str, Any]] = []
        calls: dict[int, dict[str, Any]] = {}
        for event in events:
            if isinstance(event, EngineFailed):
                status = event.status if event.status >= 400 else 500
                return status, anthropic_error(event.message, status)
            if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta) and event.index:
                continue
            match event:
                case Started():
                    self._id, self._model = event.id or self._id, event.model or self._model
                case TextDelta(text) if text:
                    _last(blocks, {"type": "text", "text": ""})["text"] += text
                case ReasoningDelta(_, _, signature) if signature.startswith(REDACTED):
                    blocks.append({"type": "redacted_thinking", "data": signature.removeprefix(REDACTED)})
                case ReasoningDelta(text, _, signature) if text or signature:
                    block = _last(blocks, {"type": "thinking", "thinking": "", "signature": ""})
                    if block["signature"] and text:
                        block = {"type": "thinking", "thinking": "", "signature": ""}
                        blocks.append(block)
                    block["thinking"] += text
                    block["signature"] += signature
                case ToolCallDelta():
                    self._gather(event, calls, blocks)
                case Finished(index=0):
                    self._finished = event
                case Used():
                    self._used = event
        for block in calls.values():
            block["input"] = _input(block["input"])
        self._calls = dict.fromkeys(calls, 0)
        return 200, orjson.dumps({**self._message(blocks), **self._ending(), "usage": _usage(self._used)})

    def _gather(self, event: ToolCallDelta, calls: dict[int, dict[str, Any]], blocks: list[dict[str, Any]]) -> None:
        block = calls.get(event.position)
        if block is None:
            block = {"type": "tool_use", "id": self._call_id(event), "name": event.name, "input": ""}
            calls[event.position] = block
            blocks.append(block)
        block["input"] += event.arguments

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._used),
        }

    def _ending(self) -> dict[str, Any]:
        finished = self._finished or Finished()
        reason = _REASONS.get(finished.reason, "end_turn")
        if finished.reason == "stop" and finished.stop_sequence is not None:
            reason = "stop_sequence"
        elif finished.reason == "stop" and self._calls:  # some engines say so of calls too
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": finished.stop_sequence}

    def _call_id(self, event: ToolCallDelta) -> str:
        return event.id or f"toolu_{self._id}_{event.position}"

    def _write_event(self, event: Event, out: list[bytes]) -> None:
        if self._is_over:
            return
        if isinstance(event, EngineFailed):
            out.append(self._fail(event.message, event.status))
        elif isinstance(event, Used):
            self._used = event
            if self._finished is not None:
                self._close_message(out)
        elif isinstance(event, Started):
            self._id, self._model = event.id or self._id, event.model or self._model
            self._start(out)
        elif event.index:
            return
        elif isinstance(event, TextDelta):
            if event.text:
                self._write("text", {"text": ""}, "text_delta", "text", event.text, out)
        elif isinstance(event, ReasoningDelta):
            self._write_reasoning(event, out)
        elif isinstance(event, ToolCallDelta):
            self._call(event, out)
        else:
            self._finished = event
            self._close_block(out)

    def _write(self, kind: str, empty: dict[str, Any], delta: str, field: str, text: str, out: list[bytes]) -> None:
        """Writes more of a block of this kind, and opens one where another is open."""
        if self._open != kind:
            self._open_block(kind, empty, delta, field, out)
        out += (self._prefix, orjson.dumps(text), _DELTA_END)

    def _write_reasoning(self, event: ReasoningDelta, out: list[bytes]) -> None:
        if event.signature.startswith(REDACTED):
            data = event.signature.removeprefix(REDACTED)
            self._open_block("redacted_thinking", {"data": data}, "", "", out)
            self._close_block(out)
            return
        empty = {"thinking": "", "signature": ""}
        if event.text:
            self._write("thinking", empty, "thinking_delta", "thinking", event.text, out)
        if event.signature:
            if self._open != "thinking":
                self._open_block("thinking", empty, "thinking_delta", "thinking", out)
            out += (_DELTA % (self._index, b"signature_delta", b"signature"), orjson.dumps(event.signature), _DELTA_END)
            self._close_block(out)  # a signature proves all of a block

    def _call(self, event: ToolCallDelta, out: list[bytes]) -> None:
        index = self._calls.get(event.position)
        if index is None:
            empty = {"id": self._call_id(event), "name": event.name, "input": {}}
            self._open_block("tool_use", empty, "input_json_delta", "partial_json", out)
            index = self._calls[event.position] = self._index
        if event.arguments:
            prefix = self._prefix
            if index != self._index:  # a call that others came after
                prefix = _DELTA % (index, b"input_json_delta", b"partial_json")
            out += (prefix, orjson.dumps(event.arguments), _DELTA_END)

    def _start(self, out: list[bytes]) -> None:
        if not self._has_started:
            self._has_started = True
            out.append(_event("message_start", {"message": self._message([])}))

    def _open_block(self, kind: str, empty: dict[str, Any], delta: str, field: str, out: list[bytes]) -> None:
        self._start(out)
        self._close_block(out)
        self._index += 1
        self._open = kind
        self._prefix = _DELTA % (self._index, delta.encode(), field.encode())
        out.append(_event("content_block_start", {"index": self._index, "content_block": {"type": kind, **empty}}))
        if not self._has_pinged:
            self._has_pinged = True
            out.append(_PING)

    def _close_block(self, out: list[bytes]) -> None:
        if self._open:
            self._open = ""
            out.append(_event("content_block_stop", {"index": self._index}))

    def _close_message(self, out: list[bytes]) -> None:
        self._start(out)
        self._close_block(out)
        self._is_over = True
        out.append(_event("message_delta", {"delta": self._ending(), "usage": _usage(self._used)}))
        out.append(_STOP)

    def _fail(self, message: str, status: int) -> bytes:
        self._is_over = True
        self._open = ""
        return b"event: error\ndata: %b\n\n" % anthropic_error(message, status)


def _last(blocks: list[dict[str, Any]], empty: dict[str, Any]) -> dict[str, Any]:
    """The last block, a new one where it is of another type."""
    if not blocks or blocks[-1]["type"] != empty["type"]:
        blocks.append(empty)
    return blocks[-1]
