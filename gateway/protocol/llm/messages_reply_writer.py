"""Replies as clients of Anthropic's messages read them.

Source: Anthropic API reference, "Create a Message" and "Streaming Messages".
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.llm.block_reply_writer import BlockReplyWriter, ReplyBlock
from gateway.protocol.llm.canonical import EngineFailed, Event, Finished, ReasoningDelta, ToolCallDelta, Used
from gateway.protocol.llm.errors import anthropic_error
from gateway.protocol.llm.json_fields import Fields
from gateway.protocol.llm.messages_request_reader import REDACTED

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
                return self.fields | {"input": _input(self.text)}
        return self.fields


class MessagesReplyWriter(BlockReplyWriter[ContentBlock]):
    """Writes one reply."""

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
        self._write(
            {"type": "message_start", "message": self._reply({"stop_reason": None, "stop_sequence": None})}, out
        )

    def _write_end(self, out: list[bytes]) -> None:
        self._write({"type": "message_delta", "delta": self._ending(), "usage": _usage(self._used)}, out)
        self._write({"type": "message_stop"}, out)

    def _fail(self, failure: EngineFailed, out: list[bytes]) -> None:
        self._is_over = True
        self._open = self._open_kind = None
        out.append(b"event: error\ndata: %b\n\n" % self._error(failure))

    def _error(self, failure: EngineFailed) -> bytes:
        return anthropic_error(failure.message, failure.status)

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


def _usage(used: Used | None) -> Fields:
    """Anthropic counts apart what the cache held."""
    used = used or Used()
    usage: Fields = {
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
