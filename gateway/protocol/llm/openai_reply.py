"""What replies have in common in OpenAI's chat completions and completions: chunks, ends, errors, usage.

Sources: OpenAI API reference; what vLLM, SGLang, llama.cpp, Ollama, TGI, mlx-lm and LM Studio send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.errors import GatewayError
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
from gateway.protocol.llm.errors import openai_error
from gateway.protocol.llm.json_fields import Fields, misunderstood, text_of
from gateway.protocol.llm.reply_reader import JsonReplyReader
from gateway.protocol.llm.usage import read_usage

# Of reasons that are not OpenAI's own: TGI's and SGLang's, Anthropic's behind a proxy, and of calls before tools.
_REASONS = {
    **dict.fromkeys(("length", "max_tokens", "max_length", "model_length"), "length"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(("content_filter", "safety", "refusal"), "content_filter"),
}
# The engine gave up: vLLM and SGLang (abort), vLLM (error), DeepSeek.
_FAILURES = ("abort", "error", "insufficient_system_resource")


class OpenAIReplyReader(JsonReplyReader):
    """Reads one reply; usage comes last.

    A stream that ends without `[DONE]` is whole where its choices have ended; one with `[DONE]` is whole. Of a stream
    that is cut off there is no Finished.
    """

    # Where a whole reply's choice has what a chunk's has in `delta`; "" where both have it in the choice itself.
    _whole_key = ""
    _chunk_key = ""

    def __init__(self) -> None:
        super().__init__()
        self._has_started = False
        self._open: set[int] = set()  # choices that have not ended
        self._finished: set[int] = set()
        self._usage: Any = None

    def end(self) -> list[Event]:
        events: list[Event] = []
        if self._sse.num_waiting:  # some engines end without their last empty line
            try:
                events = self.feed(b"\n\n")
            except GatewayError:
                return []
        if not self._is_over and self._finished and not self._open:
            self._done(events)
        return events

    def _read_whole(self, fields: Fields, events: list[Event]) -> None:
        if _is_error(fields):
            events.append(_failed(fields))
            return
        choices = fields.get("choices")
        if not isinstance(choices, list):
            raise misunderstood("it has no 'choices'")
        self._usage = fields.get("usage")
        self._start(fields, events)
        for choice in choices:
            self._choice(choice, self._whole_key, events)
        if not self._is_over:
            self._done(events)

    def _read(self, fields: Fields, events: list[Event]) -> None:
        choices = fields.get("choices")
        if choices is None and _is_error(fields):
            self._is_over = True
            events.append(_failed(fields))
            return
        if (usage := fields.get("usage")) is not None:
            self._usage = usage
        if not isinstance(choices, list):
            return
        if not self._has_started:
            self._start(fields, events)
        for choice in choices:
            self._choice(choice, self._chunk_key, events)

    def _start(self, fields: Fields, events: list[Event]) -> None:
        self._has_started = True
        created = fields.get("created")
        created = int(created) if isinstance(created, int | float) else 0
        events.append(Started(text_of(fields.get("id")), text_of(fields.get("model")), created))

    def _choice(self, choice: Any, key: str, events: list[Event]) -> None:
        """What one choice of a chunk, or of a whole reply, says."""
        if not isinstance(choice, dict):
            raise misunderstood("a choice is no JSON object")
        index = choice.get("index")
        if type(index) is not int:
            index = 0
        fields = choice.get(key) or {} if key else choice
        if not isinstance(fields, dict):
            raise misunderstood(f"'{key}' of a choice is no JSON object")
        if index not in self._finished:
            self._open.add(index)
        self._more(index, fields, choice, events)
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str) and index in self._open:
            self._finish(index, reason, choice, events)

    def _more(self, index: int, fields: Fields, choice: Fields, events: list[Event]) -> None:
        """What is new of a choice; `fields` is its delta, or message."""
        raise NotImplementedError

    def _reason(self, index: int, reason: str) -> str:
        """Why a choice has ended, in OpenAI's words."""
        return _REASONS.get(reason, "stop")

    def _finish(self, index: int, reason: str, choice: Fields, events: list[Event]) -> None:
        if reason in _FAILURES:
            self._is_over = True
            events.append(EngineFailed(f"the engine ended its reply with '{reason}'", 502, reason))
            return
        self._open.discard(index)
        self._finished.add(index)
        sequence = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM's, SGLang's
        sequence = sequence if isinstance(sequence, str) else None
        events.append(Finished(self._reason(index, reason), index, sequence))

    def _done(self, events: list[Event]) -> None:
        self._is_over = True
        left = self._open or (set() if self._finished else {0})
        events += [Finished("stop", index) for index in sorted(left)]
        if (used := read_usage(self._usage)) is not None:
            events.append(used)


def _is_error(fields: Fields) -> bool:
    """OpenAI's `error`, TGI's with its `error_type`, vLLM's object of old, FastAPI's `detail`."""
    return bool(fields.get("error")) or fields.get("object") == "error" or "detail" in fields


def _failed(fields: Fields) -> EngineFailed:
    message, code = read_error(orjson.dumps(fields))
    found = fields.get("error") if isinstance(fields.get("error"), dict) else fields
    status = found.get("code") if isinstance(found, dict) else None
    if isinstance(status, str) and status.isdecimal():
        status = int(status)
    return EngineFailed(message, status if isinstance(status, int) and 400 <= status <= 599 else 500, code)


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
            elif isinstance(event, TokenUsage):
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
            elif isinstance(event, TokenUsage):
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


def usage_fields(used: TokenUsage) -> Fields:
    fields: Fields = {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.prompt + used.completion,
    }
    if used.cached:
        fields["prompt_tokens_details"] = {"cached_tokens": used.cached}
    if used.reasoning:
        fields["completion_tokens_details"] = {"reasoning_tokens": used.reasoning}
    if used.is_estimated:
        fields["estimated"] = True
    return fields
