"""What replies to clients have in common in OpenAI's chat completions and completions: chunks, ends, errors, usage.

Source: OpenAI API reference.
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
from gateway.protocol.llm.json_fields import Fields


class ReplyChoice:
    """One choice of a whole reply."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.logprobs: list[Mapping[str, Any]] = []
        self.calls: dict[int, list[ToolCallDelta]] = {}  # by position
        self.reason = "stop"

    def add(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.texts.append(event.text)
            self.logprobs += event.logprobs or ()
        elif isinstance(event, ReasoningDelta):
            self.thoughts.append(event.text)
        elif isinstance(event, ToolCallDelta):
            self.calls.setdefault(event.position, []).append(event)
        elif isinstance(event, Finished):
            self.reason = event.reason


class OpenAIReplyWriter:
    """Writes one reply; what the engine does not say of itself is told as given here."""

    head_bytes = None
    _stream_object = ""
    _whole_object = ""

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        self._id, self._created, self._model = id, created, model or generation.model
        self._include_usage = generation.include_usage
        self._has_failed = False
        self._begin = b""  # of every chunk, up to its choices
        self._stop = b',"usage":null}\n\n' if generation.include_usage else b"}\n\n"

    def feed(self, events: Sequence[Event]) -> bytes:
        """The chunks of the stream that tell these; a start is told with what comes first."""
        out: list[bytes] = []
        for event in events:
            if self._has_failed:
                break
            if isinstance(event, Started):
                self._name(event)
            elif isinstance(event, Used):
                if self._include_usage:
                    out.append(self._chunk(b"[]", b',"usage":%b}\n\n' % orjson.dumps(usage_fields(event))))
            elif isinstance(event, EngineFailed):
                self._has_failed = True
                out.append(b"data: %b\n\n" % openai_error(event.message, event.status, event.code))
            elif fields := self._event_bytes(event):
                out.append(fields)
        return b"".join(out) if len(out) != 1 else out[0]

    def end(self) -> bytes:
        """What ends the stream; nothing where it has ended by a failure."""
        return b"" if self._has_failed else b"data: [DONE]\n\n"

    def whole(self, events: Sequence[Event]) -> tuple[int, bytes]:
        """The status and the body of a reply that is not streamed."""
        choices: dict[int, ReplyChoice] = {}
        usage: Fields = {}
        for event in events:
            if isinstance(event, EngineFailed):
                return event.status, openai_error(event.message, event.status, event.code)
            if isinstance(event, Started):
                self._name(event)
            elif isinstance(event, Used):
                usage = {"usage": usage_fields(event)}
            else:
                choices.setdefault(event.index, ReplyChoice()).add(event)
        written = [self._choice(index, choice) for index, choice in sorted((choices or {0: ReplyChoice()}).items())]
        return 200, orjson.dumps({**self._head(self._whole_object), "choices": written, **usage})

    def _event_bytes(self, event: Event) -> bytes:
        """The chunk that tells of more of a choice, or of its end."""
        raise NotImplementedError

    def _choice(self, index: int, choice: ReplyChoice) -> Fields:
        """A choice of a whole reply."""
        raise NotImplementedError

    def _name(self, started: Started) -> None:
        self._id = started.id or self._id
        self._model = started.model or self._model
        self._created = started.created or self._created

    def _head(self, object: str) -> Fields:
        return {"id": self._id, "object": object, "created": self._created, "model": self._model}

    def _chunk(self, choices: bytes, stop: bytes) -> bytes:
        if not self._begin:
            self._begin = b'data: %b,"choices":' % orjson.dumps(self._head(self._stream_object))[:-1]
        return self._begin + choices + stop


def usage_fields(used: Used) -> Fields:
    fields: Fields = {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.prompt + used.completion,
    }
    if used.cached:
        fields["prompt_tokens_details"] = {"cached_tokens": used.cached}
    if used.reasoning:
        fields["completion_tokens_details"] = {"reasoning_tokens": used.reasoning}
    return fields
