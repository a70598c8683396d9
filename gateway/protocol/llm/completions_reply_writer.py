"""Replies as clients of OpenAI's completions read them.

Source: OpenAI API reference, "The completion object".
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.protocol.llm.canonical import Event, Finished, Generation, ReasoningDelta, TextDelta
from gateway.protocol.llm.completions_logprobs import to_completions
from gateway.protocol.llm.openai_reply_writer import OpenAIReplyWriter
from gateway.protocol.llm.request_fields import Fields

__all__ = ["CompletionsReplyWriter"]


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

    def _told(self, event: Event) -> bytes:
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

    def _choices(self, events: Sequence[Event]) -> list[Fields]:
        choices: dict[int, Fields] = {}
        logprobs: dict[int, list[object]] = {}
        for event in events:
            if not isinstance(event, TextDelta | ReasoningDelta | Finished):
                continue
            choice = choices.setdefault(event.index, _choice(event.index))
            if isinstance(event, TextDelta):
                choice["text"] += event.text
                logprobs.setdefault(event.index, []).extend(event.logprobs or ())
            elif isinstance(event, ReasoningDelta):
                choice["reasoning_content"] = choice.get("reasoning_content", "") + event.text
            else:
                choice["finish_reason"] = _reason(event)
        for index, told in logprobs.items():
            if told:
                choices[index]["logprobs"] = to_completions(told, 0)[0]  # type: ignore[arg-type]
        return [choice for _, choice in sorted(choices.items())] or [{**_choice(0), "finish_reason": "stop"}]


def _choice(index: int, text: str = "") -> Fields:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def _reason(event: Finished) -> str:
    """The API has no calls of tools: who asks for none stops there."""
    return "stop" if event.reason == "tool_calls" else event.reason
