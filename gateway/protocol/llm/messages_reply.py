"""Replies of Anthropic's messages, read from engines and written for clients.

Source: Anthropic API reference, "Create a Message" and "Streaming Messages".
"""

from __future__ import annotations

import orjson

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.llm.block_reply_writer import BlockReplyWriter, ReplyBlock
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.protocol.llm.errors import ANTHROPIC_TYPES, anthropic_error
from gateway.protocol.llm.json_fields import Fields, misunderstood, text_in
from gateway.protocol.llm.messages_turns import REDACTED, json_object
from gateway.protocol.llm.reply_reader import JsonReplyReader
from gateway.protocol.llm.token_estimate import estimated_prompt_tokens
from gateway.protocol.llm.usage import read_usage

_FINISH_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
# Of errors amid a stream, which have no status of their own.
_STATUSES = {kind: status for status, kind in ANTHROPIC_TYPES.items()}


def _started(message: Fields) -> Started:
    return Started(text_in(message, "id"), text_in(message, "model"))


def _finished(fields: Fields) -> Finished:
    return Finished(
        _FINISH_REASONS.get(text_in(fields, "stop_reason"), "stop"), 0, text_in(fields, "stop_sequence") or None
    )


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
        used = read_usage(self._usage)
        return [used] if used is not None else []

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
        events.append(_finished(fields))
        if (used := read_usage(fields.get("usage"))) is not None:
            events.append(used)

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


_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
# By the type of a block: the type of its deltas, and the field of their text.
_DELTAS = {
    "text": (b"text_delta", b"text"),
    "thinking": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
    "redacted_thinking": (b"", b""),
}


class ContentBlock(ReplyBlock):
    """`fields` are those that it begins with."""

    def __init__(self, index: int, fields: Fields) -> None:
        super().__init__()
        self.index, self.fields = index, fields
        self.prefix = _DELTA % (index, *_DELTAS[fields["type"]])

    def beginning(self) -> list[Fields]:
        return [{"type": "content_block_start", "index": self.index, "content_block": self.fields}]

    def ending(self, is_complete: bool) -> list[Fields]:
        return [{"type": "content_block_stop", "index": self.index}]

    def whole(self) -> Fields:
        match self.fields["type"]:
            case "text" | "thinking" as kind:
                return self.fields | {kind: self.text}
            case "tool_use":
                return self.fields | {"input": json_object(self.text or "{}") or {"INVALID_JSON": self.text}}
        return self.fields


class MessagesReplyWriter(BlockReplyWriter[ContentBlock]):
    """Writes one reply."""

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        super().__init__(generation, id=id, created=created, model=model)
        self._request_id = id.removeprefix("msg_")

    def _new_block(self, event: Event) -> ContentBlock:
        fields: Fields = {"type": "text", "text": ""}
        if isinstance(event, ToolCallDelta):
            id = event.id or f"toolu_{self._id}_{event.position}"
            fields = {"type": "tool_use", "id": id, "name": event.name, "input": {}}
        elif isinstance(event, ReasoningDelta) and event.signature.startswith(REDACTED):
            fields = {"type": "redacted_thinking", "data": event.signature.removeprefix(REDACTED)}
        elif isinstance(event, ReasoningDelta):
            fields = {"type": "thinking", "thinking": "", "signature": ""}
        return ContentBlock(len(self._blocks), fields)

    def _open_block(self, event: Event, out: list[bytes]) -> ContentBlock:
        block = super()._open_block(event, out)
        if not block.index:
            out.append(_PING)
        return block

    def _write_reasoning(self, event: ReasoningDelta, out: list[bytes]) -> None:
        if event.signature.startswith(REDACTED):
            self._open_block(event, out)
            self._close_block(out)
        else:
            super()._write_reasoning(event, out)

    def _write_more(self, block: ContentBlock, text: str, out: list[bytes]) -> None:
        block.texts.append(text)
        out.append(block.prefix + orjson.dumps(text) + b"}}\n\n")

    def _sign(self, block: ContentBlock, signature: str, out: list[bytes]) -> None:
        block.fields["signature"] = signature
        prefix = _DELTA % (block.index, b"signature_delta", b"signature")
        out.append(b"%b%b}}\n\n" % (prefix, orjson.dumps(signature)))

    def _write_start(self, out: list[bytes]) -> None:
        """Some clients read the prompt's tokens here alone, before any engine has counted them: an estimate, which the
        count of `message_delta` replaces."""
        prompt = TokenUsage(estimated_prompt_tokens(self._generation))
        message = self._reply({"stop_reason": None, "stop_sequence": None}) | {"usage": _usage(prompt)}
        self._write({"type": "message_start", "message": message}, out)

    def _write_end(self, out: list[bytes]) -> None:
        self._write({"type": "message_delta", "delta": self._ending(), "usage": _usage(self._used)}, out)
        self._write({"type": "message_stop"}, out)

    def _fail(self, failure: EngineFailed, out: list[bytes]) -> None:
        self._is_over = True
        self._open = self._open_kind = None
        out.append(b"event: error\ndata: %b\n\n" % self._error(failure))

    def _error(self, failure: EngineFailed) -> bytes:
        return anthropic_error(failure.message, failure.status, self._request_id)

    def _reply(self, ending: Fields | None = None) -> Fields:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [block.whole() for block in self._blocks],
            **(ending or self._ending()),
            "usage": _usage(self._used),
        }

    def _ending(self) -> Fields:
        finished = self._finished or Finished()
        reason = _REASONS.get(finished.reason, "end_turn")
        if finished.reason == "stop" and finished.stop_sequence is not None:
            reason = "stop_sequence"
        elif finished.reason == "stop" and self._calls:  # some engines say so of calls too
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": finished.stop_sequence}


def _usage(used: TokenUsage | None) -> Fields:
    """Anthropic counts apart what the cache held."""
    used = used or TokenUsage()
    usage: Fields = {
        "input_tokens": used.prompt - used.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.completion,
    }
    if used.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": used.reasoning}
    if used.is_estimated:
        usage["estimated"] = True
    return usage
