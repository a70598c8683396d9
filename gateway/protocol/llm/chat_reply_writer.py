"""Replies as clients of OpenAI's chat completions read them.

The role stands in a choice's first chunk, with what it says first, so that nothing is told before the model speaks.
Thoughts are told as `reasoning_content`.

Source: OpenAI API reference, "The chat completion object" and "The chat completion chunk object".
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.protocol.llm.canonical import Event, Finished, Generation, ReasoningDelta, TextDelta, ToolCallDelta
from gateway.protocol.llm.openai_reply_writer import OpenAIReplyWriter
from gateway.protocol.llm.request_fields import Fields

__all__ = ["ChatReplyWriter"]


class ChatReplyWriter(OpenAIReplyWriter):
    """Writes one reply."""

    _stream_object = "chat.completion.chunk"
    _whole_object = "chat.completion"

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        super().__init__(generation, id=id, created=created, model=model)
        self._texts: dict[int, bytes] = {}  # of each choice that has begun: a chunk of text, up to the text
        self._end_of_text = b'},"logprobs":null,"finish_reason":null}]' + self._stop
        self._called: set[tuple[int, int]] = set()  # choice and position of the calls that have begun

    def _told(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            begin = self._texts.get(event.index)
            if begin is not None and event.logprobs is None:
                return begin + orjson.dumps(event.text) + self._end_of_text
            return self._delta(event.index, {"content": event.text}, event.logprobs)
        if isinstance(event, ReasoningDelta):  # what proves it is of its provider's API
            return self._delta(event.index, {"reasoning_content": event.text}) if event.text else b""
        if isinstance(event, ToolCallDelta):
            return self._delta(event.index, {"tool_calls": [self._call(event)]})
        if isinstance(event, Finished):
            return self._delta(event.index, {}, None, event.reason)
        return b""

    def _delta(
        self,
        index: int,
        delta: Fields,
        logprobs: Sequence[object] | None = None,
        reason: str | None = None,
    ) -> bytes:
        if index not in self._texts:
            delta = {"role": "assistant", "content": "" if "tool_calls" not in delta else None} | delta
            self._texts[index] = self._chunk(b'[{"index":%d,"delta":{"content":' % index, b"")
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs is not None else None,
            "finish_reason": reason,
        }
        return self._chunk(orjson.dumps([choice]), self._stop)

    def _call(self, event: ToolCallDelta) -> Fields:
        if (event.index, event.position) in self._called:
            return {"index": event.position, "function": {"arguments": event.arguments}}
        self._called.add((event.index, event.position))
        function = {"name": event.name, "arguments": event.arguments}
        return {"index": event.position, "id": self._call_id(event), "type": "function", "function": function}

    def _call_id(self, event: ToolCallDelta) -> str:
        """The call's id; a client cannot answer one without."""
        return event.id or f"call_{self._id}_{event.index}_{event.position}"

    def _choices(self, events: Sequence[Event]) -> list[Fields]:
        choices: dict[int, _Choice] = {}
        for event in events:
            if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta | Finished):
                choice = choices.setdefault(event.index, _Choice())
                if isinstance(event, ToolCallDelta) and event.position not in choice.calls:
                    choice.calls[event.position] = (self._call_id(event), event.name, [])
                choice.add(event)
        return [choice.told(index) for index, choice in sorted((choices or {0: _Choice()}).items())]


class _Choice:
    """A choice of a whole reply."""

    def __init__(self) -> None:
        self.calls: dict[int, tuple[str, str, list[str]]] = {}  # position -> id, name, arguments
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._logprobs: list[object] = []
        self._reason = "stop"

    def add(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self._texts.append(event.text)
            self._logprobs += event.logprobs or ()
        elif isinstance(event, ReasoningDelta):
            self._thoughts.append(event.text)
        elif isinstance(event, ToolCallDelta):
            self.calls[event.position][2].append(event.arguments)
        elif isinstance(event, Finished):
            self._reason = event.reason

    def told(self, index: int) -> Fields:
        text, thought = "".join(self._texts), "".join(self._thoughts)
        message: Fields = {"role": "assistant", "content": text, "refusal": None}
        if thought:
            message["reasoning_content"] = thought
        if self.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
                for _, (id, name, arguments) in sorted(self.calls.items())
            ]
        logprobs = {"content": self._logprobs, "refusal": None} if self._logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": self._reason}
