"""One item of a response as it grows: its fields at any moment, and the events of a stream that begin and end it.

Source: OpenAI API reference, "Streaming events".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.protocol.llm.responses_fields import (
    Fields,
    call_item,
    message_item,
    reasoning_item,
    reasoning_part,
    text_part,
    told_logprobs,
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
        told = {"text": self.text, "logprobs": self.logprobs}
        return {"type": "response.output_text.done", **self._place(), **told}

    def delta_with(self, text: str, logprobs: list[Mapping[str, Any]]) -> Fields:
        """The event of a delta with the logprobs of its tokens."""
        told = told_logprobs(logprobs)
        self.logprobs += told
        self.texts.append(text)
        return {"type": self.delta_event, **self._place(), "delta": text, "logprobs": told}


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
        told = {"name": self.name, "arguments": self.text}
        done = {"type": "response.function_call_arguments.done", **self._place(), **told}
        return [done, *super().ending(status)]
