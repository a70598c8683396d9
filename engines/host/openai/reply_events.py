"""Converts a language model's responses to events, which every API's replies are written from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from engines.core.messages import InferResponse, SharedMemory, TensorData
from engines.host.openai.tool_calls import ToolCallReader
from gateway.protocol.conversion.tensors import split_elements
from gateway.protocol.llm.canonical import Event, Finished, Generation, Started, TextDelta, TokenUsage
from gateway.protocol.llm.generate_engine_reply import read_logprobs

_NONE = "None"
_COUNT_BYTES = 4


def num_input_tokens(response: InferResponse) -> int:
    """The tokens of the prompt of a request that has only counted them."""
    (count,) = [_counts(output) for output in response.outputs if output.name == "num_input_tokens"]
    return count[0]


def token_ids(response: InferResponse) -> list[int]:
    """The tokens of the prompt of a request that has listed them."""
    (text,) = [_texts(output)[0] for output in response.outputs if output.name == "token_ids"]
    listed: list[int] = orjson.loads(text)
    return listed


class AnswerReader:
    """Reads the responses of one generation: a stream's one by one, or the only one."""

    def __init__(self, generation: Generation, calls: ToolCallReader | None = None, first_choice: int = 0) -> None:
        """`calls` finds tool calls in the text, None without tools. `first_choice` is the index of the first choice in
        the reply."""
        self._calls = calls
        self._first = first_choice
        self._prompt_logprobs: list[dict[str, Any]] = []
        options = generation.options
        self._alternatives: int = options.get("logprobs", 0)
        self._echo = generation.prompt if options.get("echo") and isinstance(generation.prompt, str) else ""
        self._begun: set[int] = set()  # choices that have text
        self.used = TokenUsage()  # tokens of the whole reply, at its end

    def read(self, response: InferResponse) -> list[Event]:
        """The events of a response; a streamed one has the choice that its `sequence_index` names."""
        events = self._read(response)
        return events if self._calls is None else self._calls.read(events)

    def _read(self, response: InferResponse) -> list[Event]:
        index = response.parameters.get("sequence_index", 0)
        assert isinstance(index, int)
        first = self._first + index
        outputs = response.outputs
        if len(outputs) == 1 and first in self._begun:  # the usual case: more text
            return [TextDelta(text, first) for text in _texts(outputs[0]) if text]
        events: list[Event] = [] if self._begun else [Started()]
        named = {output.name: output for output in outputs}
        scores = named.get("prompt_logprobs")
        if scores is not None and (read := read_logprobs(_texts(scores)[0], self._alternatives)):
            self._prompt_logprobs = [{**read[0], "top_logprobs": []}, *read[1:]]  # the first token has none
        logprobs = _texts(named["logprobs"]) if "logprobs" in named else None
        texts = _texts(named["text_output"])
        for at, text in enumerate(texts):
            self._add_text(text, first + at, None if logprobs is None else logprobs[at], events)
        if "finish_reason" in named:
            self._finish(named, first, events)
        return events

    def _add_text(self, text: str, index: int, logprobs: str | None, events: list[Event]) -> None:
        read = None if logprobs is None else read_logprobs(logprobs, self._alternatives) or []
        if index not in self._begun:
            self._begun.add(index)
            text = self._echo + text
            if self._prompt_logprobs:
                read = self._prompt_logprobs + (read or [])
        if text or read:
            events.append(TextDelta(text, index, read or None))

    def _finish(self, named: Mapping[str, TensorData], first: int, events: list[Event]) -> None:
        reasons, stops = _texts(named["finish_reason"]), _texts(named["stop_reason"])
        for index, (reason, stop) in enumerate(zip(reasons, stops, strict=True), first):
            if reason != _NONE:
                is_text = stop != _NONE and not stop.isdecimal()
                events.append(Finished(reason, index, stop if is_text else None))
        (prompt,), (cached,) = _counts(named["num_input_tokens"]), _counts(named["num_cached_tokens"])
        completion = self.used.completion + sum(_counts(named["num_output_tokens"]))
        self.used = TokenUsage(prompt, completion, max(cached, self.used.cached))


def _texts(output: TensorData) -> list[str]:
    assert not isinstance(output.data, SharedMemory)
    return [element.decode("utf-8", "replace") for element in split_elements(output.data, output.shape[0])]


def _counts(output: TensorData) -> list[int]:
    assert not isinstance(output.data, SharedMemory)
    data = bytes(output.data)
    return [int.from_bytes(data[at : at + _COUNT_BYTES], "little") for at in range(0, len(data), _COUNT_BYTES)]
