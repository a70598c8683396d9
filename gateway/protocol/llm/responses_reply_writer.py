"""One item of a response as it grows: its fields at any moment, and the events of a stream that begin and end it.

Source: OpenAI API reference, "Streaming events".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from gateway.protocol.llm.errors import openai_error
from gateway.protocol.llm.responses_fields import (
    Fields,
    call_item,
    logprob_fields,
    message_item,
    reasoning_item,
    reasoning_part,
    request_fields_of,
    text_part,
    usage_fields,
)


class OutputItem:
    """What the model said (message), thought (reasoning) or called (function_call)."""

    delta_event = ""  # type of the event that tells more of it
    delta_end = b""  # what stands between a delta and the sequence number

    def __init__(self, id: str, index: int) -> None:
        self.id, self.index = id, index
        self.status = "in_progress"
        self.texts: list[str] = []
        # All of a delta's event that is before its text.
        fields = {"type": self.delta_event, **self._place(), "delta": ""}
        self.prefix = b"event: %b\ndata: %b" % (self.delta_event.encode(), orjson.dumps(fields).removesuffix(b'""}'))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.status}, {len(self.texts)} deltas>"

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def fields(self) -> Fields:
        """The item as it stands."""
        raise NotImplementedError

    def beginning(self) -> list[Fields]:
        """The events that come before its first delta."""
        return [{"type": "response.output_item.added", "output_index": self.index, "item": self.fields}]

    def ending(self, status: str) -> list[Fields]:
        """The events after its last delta, which say all of it once more."""
        self.status = status
        return [{"type": "response.output_item.done", "output_index": self.index, "item": self.fields}]

    def _place(self) -> Fields:
        return {"item_id": self.id, "output_index": self.index}


class _ItemOfParts(OutputItem):
    """An item whose text stands in a part."""

    def part(self) -> Fields:
        raise NotImplementedError

    def text_done(self) -> Fields:
        """The event that says its whole text."""
        raise NotImplementedError

    def beginning(self) -> list[Fields]:
        return [*super().beginning(), {"type": "response.content_part.added", **self._place(), "part": self.part()}]

    def ending(self, status: str) -> list[Fields]:
        part_done = {"type": "response.content_part.done", **self._place(), "part": self.part()}
        return [self.text_done(), part_done, *super().ending(status)]

    def _place(self) -> Fields:
        return {**super()._place(), "content_index": 0}


class MessageItem(_ItemOfParts):
    delta_event = "response.output_text.delta"
    delta_end = b',"logprobs":[],"sequence_number":'

    def __init__(self, id: str, index: int) -> None:
        super().__init__(id, index)
        self.logprobs: list[Fields] = []

    @property
    def fields(self) -> Fields:
        has_begun = self.texts or self.status != "in_progress"
        return message_item(self.id, self.status, [self.part()] if has_begun else [])

    def part(self) -> Fields:
        return text_part(self.text, self.logprobs)

    def text_done(self) -> Fields:
        written = {"text": self.text, "logprobs": self.logprobs}
        return {"type": "response.output_text.done", **self._place(), **written}

    def delta_with(self, text: str, logprobs: list[Mapping[str, Any]]) -> Fields:
        """The event of a delta with the logprobs of its tokens."""
        written = logprob_fields(logprobs)
        self.logprobs += written
        self.texts.append(text)
        return {"type": self.delta_event, **self._place(), "delta": text, "logprobs": written}


class ReasoningItem(_ItemOfParts):
    """Without text where only its provider can read what it proves by `signature`."""

    delta_event = "response.reasoning_text.delta"
    delta_end = b',"sequence_number":'

    def __init__(self, id: str, index: int, signature: str = "") -> None:
        super().__init__(id, index)
        self.signature = signature

    @property
    def fields(self) -> Fields:
        return reasoning_item(self.id, self.status, [self.part()] if self.texts else [], self.signature)

    def beginning(self) -> list[Fields]:
        return OutputItem.beginning(self) if self.signature else super().beginning()

    def ending(self, status: str) -> list[Fields]:
        return super().ending(status) if self.texts else OutputItem.ending(self, status)

    def part(self) -> Fields:
        return reasoning_part(self.text)

    def text_done(self) -> Fields:
        return {"type": "response.reasoning_text.done", **self._place(), "text": self.text}


class CallItem(OutputItem):
    delta_event = "response.function_call_arguments.delta"
    delta_end = b',"sequence_number":'

    def __init__(self, id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(id, index)
        self.call_id, self.name = call_id, name

    @property
    def fields(self) -> Fields:
        return call_item(self.id, self.status, self.call_id, self.name, self.text)

    def ending(self, status: str) -> list[Fields]:
        written = {"name": self.name, "arguments": self.text}
        done = {"type": "response.function_call_arguments.done", **self._place(), **written}
        return [done, *super().ending(status)]


# The reasons for which a response is incomplete, of those for which a choice ends.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# The codes of OpenAI's that a failed response may have, of those of others.
_CODES = {"rate_limit_error": "rate_limit_exceeded", "rate_limit_exceeded": "rate_limit_exceeded"}


class ResponsesReplyWriter:
    """Writes one reply: of the choices of one that has several, the first.

    In a stream, deltas go out as they come; `response.completed` waits for the usage, which engines tell last.
    """

    content_type = "text/event-stream"

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        self._generation = generation
        self._id, self._created, self._model = id, created, model or generation.model
        self._has_started = self._is_over = False
        self._sequence = 0  # number of the next event
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._message: MessageItem | None = None  # the open item, where it is a message
        self._calls: dict[int, CallItem] = {}  # by position
        self._finished: Finished | None = None
        self._used: Used | None = None

    def __repr__(self) -> str:
        return f"<ResponsesReplyWriter responses: {len(self._items)} items, {'over' if self._is_over else 'open'}>"

    def feed(self, events: Sequence[Event]) -> bytes:
        """The events of the stream that tell these."""
        out: list[bytes] = []
        for event in events:
            message = self._message
            if message is not None and type(event) is TextDelta and not event.index and event.logprobs is None:
                if event.text:
                    self._more(message, event.text, out)
            else:
                self._write_event(event, out)
        return b"".join(out)

    def end(self) -> bytes:
        """How the response ends, where that is not told yet."""
        out: list[bytes] = []
        if not self._is_over:
            self._close_response(out)
        return b"".join(out)

    def whole(self, events: Sequence[Event]) -> tuple[int, bytes]:
        """The status and the response that tell these."""
        for event in events:
            if isinstance(event, EngineFailed):
                status = event.status if event.status >= 400 else 500
                return status, openai_error(event.message, status, event.code)
        self.feed(events)
        self.end()
        return 200, orjson.dumps(self._response(self._final_status()))

    def _write_event(self, event: Event, out: list[bytes]) -> None:
        if self._is_over:
            return
        if isinstance(event, EngineFailed):
            self._fail(event.message, event.code, out)
        elif isinstance(event, Used):
            self._used = event
            if self._finished is not None:
                self._close_response(out)
        elif isinstance(event, Started):
            self._start(event, out)
        elif event.index:
            return
        elif isinstance(event, TextDelta):
            self._write_text(event, out)
        elif isinstance(event, ReasoningDelta):
            self._write_reasoning(event, out)
        elif isinstance(event, ToolCallDelta):
            self._call(event, out)
        else:
            self._finished = event
            self._close_item(out)

    def _write_text(self, event: TextDelta, out: list[bytes]) -> None:
        if not event.text and not event.logprobs:
            return
        item = self._message
        if item is None:
            item = MessageItem(self._item_id("msg"), len(self._items))
            self._open_item(item, out)
            self._message = item
        if event.logprobs:
            self._write(item.delta_with(event.text, list(event.logprobs)), out)
        else:
            self._more(item, event.text, out)

    def _write_reasoning(self, event: ReasoningDelta, out: list[bytes]) -> None:
        item = self._open
        if not event.text and not event.signature:
            return
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(self._item_id("rs"), len(self._items), "" if event.text else event.signature)
            self._open_item(item, out)
        if event.text:
            self._more(item, event.text, out)
        if event.signature:
            item.signature = event.signature
            self._close_item(out)  # a signature proves all of an item

    def _call(self, event: ToolCallDelta, out: list[bytes]) -> None:
        item = self._calls.get(event.position)
        if item is None:
            call_id = event.id or f"call_{self._id}_{event.position}"
            item = CallItem(self._item_id("fc"), len(self._items), call_id, event.name)
            self._calls[event.position] = item
            self._open_item(item, out)
        if event.arguments:
            self._more(item, event.arguments, out)

    def _more(self, item: OutputItem, text: str, out: list[bytes]) -> None:
        item.texts.append(text)
        sequence = self._sequence
        self._sequence = sequence + 1
        out.append(b"%b%b%b%d}\n\n" % (item.prefix, orjson.dumps(text), item.delta_end, sequence))

    def _write(self, fields: Fields, out: list[bytes]) -> None:
        written = orjson.dumps({**fields, "sequence_number": self._sequence})
        self._sequence += 1
        out.append(b"event: %b\ndata: %b\n\n" % (fields["type"].encode(), written))

    def _start(self, event: Started, out: list[bytes]) -> None:
        """Begins the response; only once, also where another engine goes on with it."""
        if self._has_started:
            return
        self._has_started = True
        self._id, self._model = event.id or self._id, event.model or self._model
        self._created = event.created or self._created
        for kind in ("response.created", "response.in_progress"):
            self._write({"type": kind, "response": self._response("in_progress")}, out)

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self._id.removeprefix('resp_')}_{len(self._items)}"

    def _open_item(self, item: OutputItem, out: list[bytes]) -> None:
        self._start(Started(), out)
        self._close_item(out)
        self._items.append(item)
        self._open = item
        for fields in item.beginning():
            self._write(fields, out)

    def _close_item(self, out: list[bytes]) -> None:
        item, self._open, self._message = self._open, None, None
        if item is not None:
            is_cut_off = self._finished is not None and self._finished.reason in _INCOMPLETE
            for fields in item.ending("incomplete" if is_cut_off else "completed"):
                self._write(fields, out)

    def _close_response(self, out: list[bytes]) -> None:
        self._start(Started(), out)
        self._close_item(out)
        self._is_over = True
        status = self._final_status()
        self._write({"type": f"response.{status}", "response": self._response(status)}, out)

    def _fail(self, message: str, code: str, out: list[bytes]) -> None:
        self._is_over = True
        if self._open is not None:
            self._open.status = "incomplete"
        self._open = self._message = None
        error = {"code": _CODES.get(code, "server_error"), "message": message}
        # OpenAI's documentation has `code` and `message` in the event, its servers have `error`: clients raise at that.
        written = {"code": code or None, "message": message, "param": None}
        self._write({"type": "error", **written, "error": {"type": "server_error", **written}}, out)
        if self._has_started:
            response = {**self._response("failed"), "error": error}
            self._write({"type": "response.failed", "response": response}, out)

    def _final_status(self) -> str:
        return "incomplete" if self._finished is not None and self._finished.reason in _INCOMPLETE else "completed"

    def _response(self, status: str) -> Fields:
        reason = _INCOMPLETE[self._finished.reason] if self._finished and status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": self._model,
            "output": [item.fields for item in self._items],
            **request_fields_of(self._generation),
            "usage": usage_fields(self._used) if self._used is not None else None,
        }
