"""Replies of OpenAI's chat completions, read from engines and written for clients.

Read: a refusal is text, and its reason is content_filter, as in other APIs. Written: the role stands in a choice's
first chunk, together with its first content, so that nothing is sent before the model answers; reasoning is
`reasoning_content`.

Sources: OpenAI API reference, "The chat completion object" and "The chat completion chunk object"; `reasoning_content`
of vLLM, SGLang, llama.cpp and DeepSeek, `reasoning` of vLLM, Ollama, LM Studio and OpenRouter; Mistral's parts of
content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.protocol.llm.canonical import Event, Finished, Generation, ReasoningDelta, TextDelta, ToolCallDelta
from gateway.protocol.llm.json_fields import Fields, misunderstood, text_of
from gateway.protocol.llm.openai_reply import OpenAIReplyReader, OpenAIReplyWriter, ReplyChoice


class ChatReplyReader(OpenAIReplyReader):
    """Reads one reply."""

    _whole_key = "message"
    _chunk_key = "delta"

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, _Calls] = {}
        self._refused: set[int] = set()

    def _more(self, index: int, fields: Fields, choice: Fields, events: list[Event]) -> None:
        reasoning = fields.get("reasoning_content") or fields.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            events.append(ReasoningDelta(reasoning, index))
        content = fields.get("content")
        if content and not isinstance(content, str):
            content = _from_parts(content, index, events)
        logprobs = _logprobs(choice.get("logprobs"))
        if refusal := text_of(fields.get("refusal")):
            self._refused.add(index)
            events.append(TextDelta(refusal, index, logprobs))
        elif content or logprobs:
            events.append(TextDelta(content or "", index, logprobs))
        if calls := fields.get("tool_calls"):
            self._calls.setdefault(index, _Calls()).read(calls, index, events)
        elif function := fields.get("function_call"):
            self._calls.setdefault(index, _Calls()).read([{"index": 0, "function": function}], index, events)

    def _reason(self, index: int, reason: str) -> str:
        """Some engines say stop where the model has called a tool, too."""
        if reason == "stop" and index in self._refused:
            return "content_filter"
        if reason == "stop" and index in self._calls:
            return "tool_calls"
        return super()._reason(index, reason)


class _Calls:
    """The tool calls of one choice. Engines number them, or give each a new id, or send them whole, one for one."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}  # by the engine's number
        self._ids: list[str] = []  # by position

    def read(self, calls: Any, index: int, events: list[Event]) -> None:
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise misunderstood("a tool call has no 'function'")
            id, name = text_of(call.get("id")), text_of(function.get("name"))
            position, is_new = self._position(call.get("index"), id, name)
            arguments = function.get("arguments") or ""
            if not isinstance(arguments, str):
                arguments = orjson.dumps(arguments).decode()
            if is_new:
                events.append(ToolCallDelta(position, id, name, arguments, index))
            elif arguments:
                events.append(ToolCallDelta(position, arguments=arguments, index=index))

    def _position(self, number: Any, id: str, name: str) -> tuple[int, bool]:
        """Which call it is, and whether it is new."""
        num_calls = len(self._ids)
        if type(number) is not int:
            is_new = bool(name) or not num_calls
            position = num_calls if is_new else num_calls - 1
        else:
            position = self._positions.get(number, num_calls)
            if position < num_calls and id and name and id != self._ids[position]:
                position = num_calls  # one number for all of them, as Ollama once had it
            self._positions[number] = position
            is_new = position == num_calls
        if is_new:
            self._ids.append(id)
        return position, is_new


def _from_parts(content: Any, index: int, events: list[Event]) -> str:
    """The text of content in parts; thoughts among them are told."""
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "thinking":
            reasoning = part.get("thinking")
            inner = reasoning if isinstance(reasoning, list) else [{"text": reasoning}]
            text = "".join([text_of(piece.get("text")) for piece in inner if isinstance(piece, dict)])
            events.append(ReasoningDelta(text, index))
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "".join(texts)


def _logprobs(fields: Any) -> list[Fields] | None:
    if not fields or not isinstance(fields, dict):
        return None
    found = fields.get("content") or fields.get("refusal")
    return found if isinstance(found, list) else None


class ChatReplyWriter(OpenAIReplyWriter):
    """Writes one reply."""

    _stream_object = "chat.completion.chunk"
    _whole_object = "chat.completion"

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        super().__init__(generation, id=id, created=created, model=model)
        self._texts: dict[int, bytes] = {}  # of each choice that has begun: a chunk of text, up to the text
        self._end_of_text = b'},"logprobs":null,"finish_reason":null}]' + self._stop
        self._called: set[tuple[int, int]] = set()  # choice and position of the calls that have begun

    def _event_bytes(self, event: Event) -> bytes:
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
        self, index: int, delta: Fields, logprobs: Sequence[object] | None = None, reason: str | None = None
    ) -> bytes:
        if index not in self._texts:
            delta = {"role": "assistant", "content": "" if "tool_calls" not in delta else None} | delta
            self._texts[index] = self._chunk(b'[{"index":%d,"delta":{"content":' % index, b"")
        fields = {"content": logprobs, "refusal": None} if logprobs is not None else None
        choice = {"index": index, "delta": delta, "logprobs": fields, "finish_reason": reason}
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

    def _choice(self, index: int, choice: ReplyChoice) -> Fields:
        text, reasoning = "".join(choice.texts), "".join(choice.thoughts)
        message: Fields = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if choice.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {
                    "id": self._call_id(call[0]),
                    "type": "function",
                    "function": {"name": call[0].name, "arguments": "".join([delta.arguments for delta in call])},
                }
                for _, call in sorted(choice.calls.items())
            ]
        logprobs = {"content": choice.logprobs, "refusal": None} if choice.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.reason}
