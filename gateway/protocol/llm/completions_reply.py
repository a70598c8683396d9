"""Replies of OpenAI's completions, read from engines and written for clients.

Their log probabilities have a form of their own; that of chat completions is the canonical one:

    completions: {tokens: [t], token_logprobs: [x], top_logprobs: [{t: x}] or null, text_offset: [n]}
    chat:        [{token: t, logprob: x, bytes: [b] or null, top_logprobs: [{token: t, logprob: x, bytes: [b]}]}]

Source: OpenAI API reference, "The completion object", "logprobs".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.protocol.llm.canonical import Event, Finished, Generation, ReasoningDelta, TextDelta
from gateway.protocol.llm.json_fields import Fields, text_of
from gateway.protocol.llm.openai_reply_reader import OpenAIReplyReader
from gateway.protocol.llm.openai_reply_writer import OpenAIReplyWriter, ReplyChoice

# Stands for what a tokenizer could not decode.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def from_completions(parsed: Any) -> list[Fields] | None:
    """The canonical form; None where there is none. llama.cpp tells chat's form in completions too (`content`)."""
    if not isinstance(parsed, dict):
        return None
    if isinstance(parsed.get("content"), list):
        return list(parsed["content"])
    tokens, logprobs, tops = (_list(parsed.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    found = []
    for at, token in enumerate(tokens):
        top = tops[at] if at < len(tops) else None
        alternatives = [_one(other, value) for other, value in top.items()] if isinstance(top, dict) else []
        logprob = logprobs[at] if at < len(logprobs) else None
        found.append({**_one(str(token), logprob), "top_logprobs": alternatives})
    return found or None


def to_completions(parsed: Sequence[Mapping[str, Any]], offset: int) -> tuple[Fields, int]:
    """The form of completions, and the offset of what follows. Offsets count characters of the reply's text."""
    tokens, logprobs, offsets = [], [], []
    tops: list[dict[str, Any]] = []
    for one in parsed:
        token = one.get("token") or ""
        tokens.append(token)
        logprobs.append(one.get("logprob"))
        tops.append({top.get("token") or "": top.get("logprob") for top in one.get("top_logprobs") or ()})
        offsets.append(offset)
        offset += len(token)
    fields = {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": tops if any(tops) else None,
        "text_offset": offsets,
    }
    return fields, offset


def _one(token: str, logprob: Any) -> Fields:
    """Bytes are told where they are known: a token of part of a character is not decoded."""
    return {"token": token, "logprob": logprob, "bytes": None if _REPLACEMENT in token else list(token.encode())}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class CompletionsReplyReader(OpenAIReplyReader):
    """Reads one reply."""

    def _more(self, index: int, parsed: Fields, choice: Fields, events: list[Event]) -> None:
        text = text_of(parsed.get("text"))
        logprobs = from_completions(parsed.get("logprobs"))
        if text or logprobs:
            events.append(TextDelta(text, index, logprobs))


class CompletionsReplyWriter(OpenAIReplyWriter):
    """Writes one reply.

    The API has no place for thoughts; they are told as chat completions tell them, in `reasoning_content` beside an
    empty text, which its clients pass over.
    """

    _stream_object = "text_completion"
    _whole_object = "text_completion"

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        super().__init__(generation, id=id, created=created, model=model)
        self._texts: dict[int, bytes] = {}  # a chunk of each choice, up to its text
        self._end_of_text = b',"logprobs":null,"finish_reason":null}]' + self._stop
        self._offsets: dict[int, int] = {}  # characters told of each choice

    def _event_bytes(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            if event.logprobs is None:
                return self._begin_of_text(event.index) + orjson.dumps(event.text) + self._end_of_text
            logprobs, self._offsets[event.index] = to_completions(event.logprobs, self._offsets.get(event.index, 0))
            return self._one({**_choice(event.index, event.text), "logprobs": logprobs})
        if isinstance(event, ReasoningDelta):
            return self._one({**_choice(event.index), "reasoning_content": event.text}) if event.text else b""
        if isinstance(event, Finished):
            return self._one({**_choice(event.index), "finish_reason": _reason(event)})
        return b""

    def _begin_of_text(self, index: int) -> bytes:
        begin = self._texts.get(index)
        if begin is None:
            begin = self._texts[index] = self._chunk(b'[{"index":%d,"text":' % index, b"")
        return begin

    def _one(self, choice: Fields) -> bytes:
        return self._chunk(orjson.dumps([choice]), self._stop)

    def _choice(self, index: int, choice: ReplyChoice) -> Fields:
        logprobs = to_completions(choice.logprobs, 0)[0] if choice.logprobs else None
        fields = {"index": index, "text": "".join(choice.texts), "logprobs": logprobs, "finish_reason": _reason(choice)}
        return fields | ({"reasoning_content": "".join(choice.thoughts)} if choice.thoughts else {})


def _choice(index: int, text: str = "") -> Fields:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def _reason(event: Finished | ReplyChoice) -> str:
    """The API has no calls of tools: who asks for none stops there."""
    return "stop" if event.reason == "tool_calls" else event.reason
