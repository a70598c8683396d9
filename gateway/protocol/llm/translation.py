"""A generation translated between two APIs: read in the client's, written in the engine's, and the reply back.

It remembers what the client has read, so that a generation that breaks off can go on at another engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    Message,
    ReasoningDelta,
    Started,
    Text,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.protocol.llm.token_estimate import estimated_usage
from gateway.protocol.translator import BINARY, JSON, EngineRequest, Reply

_END_OF_EVENT = b"}\n\n"
_EVENTS = "text/event-stream"
_FREE = {"type": "text"}  # a response format without a constraint
_CUT_OFF = "the engine ended its reply before the generation had ended"


class ReplyReader(Protocol):
    """Reads an engine's reply into events."""

    def feed(self, data: bytes) -> list[Event]: ...

    def end(self) -> list[Event]: ...

    def whole(self, status: int, body: bytes) -> list[Event]: ...


class ReplyWriter(Protocol):
    """Writes events for a client. `head_bytes`: where the JSON of a whole reply ends and tensors begin, if any do."""

    @property
    def head_bytes(self) -> int | None: ...

    def feed(self, events: Sequence[Event]) -> bytes: ...

    def end(self) -> bytes: ...

    def whole(self, events: Sequence[Event]) -> tuple[int, bytes]: ...


class EngineCodec(Protocol):
    """Writes the requests for one engine, and makes the readers of its replies."""

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        """The request. `continues`: the last message is the beginning of the answer, which is to go on.

        Raises: GatewayError(UNSUPPORTED) that names what the engine has no place for.
        """
        ...

    def reader(self, generation: Generation) -> ReplyReader: ...


class GenerationTranslator:
    """A `Translator` of one generation; a new `codec` lets another engine go on."""

    def __init__(
        self, generation: Generation, codec: EngineCodec, writer: ReplyWriter, *, always_stream: bool = False
    ) -> None:
        """`always_stream`: the engine streams its reply even where the client reads it whole."""
        self.streams = generation.stream
        if always_stream:
            generation = replace(generation, stream=True, include_usage=True)
        self.generation = generation
        self.codec = codec
        self._writer = writer
        self._reader = codec.reader(generation)
        self._text: list[str] = []  # that the client has read of the only choice
        self._num_deltas = 0
        self._num_other_deltas = self._num_other_bytes = 0  # of reasoning and tool calls
        self._has_usage = False  # or will have none
        self._has_finished = False
        self._has_reasoning = False
        self._is_plain_text = generation.options.get("n", 1) == 1

    def request(self) -> EngineRequest:
        return self.codec.request(self.generation, continues=False)

    def whole(self, reply: Reply) -> Reply:
        if reply.status == 200 and reply.content_type.startswith(_EVENTS):
            events = [*self._reader.feed(reply.body), *self._reader.end()]
            self._note(events)
            if not self._has_finished:
                raise GatewayError(ErrorKind.UPSTREAM_RESET, _CUT_OFF)
        else:
            events = self._reader.whole(reply.status, reply.body)
            self._note(events)
        self._complete(events)
        status, body = self._writer.whole(events)
        head_bytes = self._writer.head_bytes
        return Reply(status, body, JSON if head_bytes is None else BINARY, head_bytes)

    def feed(self, data: bytes) -> bytes:
        events = self._reader.feed(data)
        if not events:
            return b""
        self._note(events)
        return self._writer.feed(events)

    def end(self) -> bytes:
        events = self._reader.end()
        self._note(events)
        if self._has_finished:
            self._complete(events)
        written = self._writer.feed(events) if events else b""
        if not self._has_finished:
            raise GatewayError(ErrorKind.UPSTREAM_RESET, _CUT_OFF)
        return written + self._writer.end()

    def _complete(self, events: list[Event]) -> None:
        """Add an estimate of the usage where the engine has told none."""
        if not self._has_usage:
            num_bytes = len("".join(self._text).encode("utf-8", "replace")) + self._num_other_bytes
            events.append(estimated_usage(self.generation, self._num_deltas + self._num_other_deltas, num_bytes))

    # Going on elsewhere

    @property
    def can_resume(self) -> bool:
        """Whether what is missing can be told: not of several choices, nor where a tool call has begun, nor of
        reasoning without an answer, nor where a grammar holds, which would start over."""
        generation = self.generation
        takes_text = bool(generation.messages) or isinstance(generation.prompt, str)
        is_free = generation.options.get("response_format", _FREE) == _FREE
        has_only_reasoning = self._has_reasoning and not self._text
        return self._is_plain_text and takes_text and is_free and not has_only_reasoning and not self._has_finished

    def resume(self) -> EngineRequest:
        """The request for what is missing.

        Raises: GatewayError where the engine has no place for it.
        """
        generation = self.generation
        text, repeats = "".join(self._text), ""
        options = {name: value for name, value in generation.options.items() if name != "echo"}
        if "max_tokens" in options:
            options["max_tokens"] = max(1, options["max_tokens"] - self._num_deltas)
        if "min_tokens" in options:
            options["min_tokens"] = max(0, options["min_tokens"] - self._num_deltas)
        generation = replace(generation, options=options)
        if not text:
            request_again = self.codec.request(generation, continues=False)
        elif generation.messages:
            begun = Message("assistant", (Text(text),))
            generation = replace(generation, messages=(*generation.messages, begun))
            request_again, repeats = self.codec.request(generation, continues=True), text
        else:
            assert isinstance(generation.prompt, str)
            generation = replace(generation, prompt=generation.prompt + text)
            request_again = self.codec.request(generation, continues=False)
        self._reader = _Continued(self.codec.reader(generation), repeats)
        return request_again

    def seam(self) -> bytes:
        """The event that marks where another engine begins: text as any other, but empty, with a field of ours."""
        written = orjson.dumps({"resumed_after_tokens": self._num_deltas})
        event = self._writer.feed([TextDelta("")])
        if not event.endswith(_END_OF_EVENT):
            return b": pointsman %b\n\n" % written  # a comment, which readers of events pass over
        return b'%b,"pointsman":%b}\n\n' % (event.removesuffix(_END_OF_EVENT), written)

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            kind = type(event)
            if kind is TextDelta:
                self._text.append(event.text)  # type: ignore[union-attr]
                self._num_deltas += 1
            elif kind is Finished:
                self._has_finished = True
            elif kind is TokenUsage:
                self._has_usage = True
            elif kind is EngineFailed:
                self._has_finished = self._has_usage = True
            elif kind is ToolCallDelta:
                self._is_plain_text = False
                self._note_other(event.name + event.arguments)  # type: ignore[union-attr]
            elif kind is ReasoningDelta:
                self._has_reasoning = True
                self._note_other(event.text)  # type: ignore[union-attr]

    def _note_other(self, text: str) -> None:
        self._num_other_deltas += 1
        self._num_other_bytes += len(text.encode("utf-8", "replace"))


class _Continued:
    """Reads the reply of an engine that went on; text that it repeats of the beginning (llama.cpp does) is left out."""

    def __init__(self, reader: ReplyReader, beginning: str) -> None:
        """`beginning` is what the engine may repeat; empty where it does not."""
        self._reader = reader
        self._beginning = beginning
        self._held: list[Event] = []  # text that may be a repetition
        self._held_text = ""

    def feed(self, data: bytes) -> list[Event]:
        return self._sorted_out(self._reader.feed(data))

    def end(self) -> list[Event]:
        return self._sorted_out(self._reader.end())

    def whole(self, status: int, body: bytes) -> list[Event]:
        return self._reader.whole(status, body)

    def _sorted_out(self, events: list[Event]) -> list[Event]:
        sorted_out: list[Event] = []
        for event in events:
            if isinstance(event, Started):
                continue
            if not self._beginning:
                sorted_out.append(event)
            elif isinstance(event, TextDelta):
                sorted_out += self._unrepeated(event)
            else:
                sorted_out += self._release()
                sorted_out.append(event)
        return sorted_out

    def _unrepeated(self, event: TextDelta) -> list[Event]:
        """What is to be told once this text has come."""
        self._held.append(event)
        self._held_text += event.text
        if self._held_text.startswith(self._beginning):
            rest = self._held_text[len(self._beginning) :]
            self._beginning = ""
            return [replace(event, text=rest)] if rest else []
        return [] if self._beginning.startswith(self._held_text) else self._release()

    def _release(self) -> list[Event]:
        """It was no repetition, or not all of one."""
        held, self._held, self._beginning = self._held, [], ""
        return held
