"""Finds tool calls in a model's text, and reports them as events.

Qwen's templates, and others after Hermes, have the model write each call as JSON between tags:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Rome"}}
    </tool_call>

Text that may begin a tag is held back until that is decided. Text between tags that is no call stays text.
Source: NousResearch, "Hermes Function Calling"; Qwen2.5's and Qwen3's chat templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.protocol.llm.canonical import Event, Finished, TextDelta, ToolCallDelta

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(slots=True)
class _Choice:
    """The unsent text of one choice."""

    held: str = ""  # may begin a tag; between the tags, everything so far
    space: str = ""  # at the end of the text so far: dropped before a call
    is_inside: bool = False  # between the tags
    num_calls: int = 0


class ToolCallReader:
    """Takes the calls out of the text of one reply."""

    def __init__(self, make_id: Callable[[], str]) -> None:
        """`make_id` returns a unique id of a call."""
        self._make_id = make_id
        self._choices: dict[int, _Choice] = {}

    def read(self, events: Iterable[Event]) -> list[Event]:
        """The events, with calls in place of their text. Log probabilities stay with the remaining text."""
        emitted: list[Event] = []
        for event in events:
            if isinstance(event, TextDelta):
                choice = self._choices.setdefault(event.index, _Choice())
                choice.held += event.text
                self._emit(choice, event, emitted)
            elif isinstance(event, Finished):
                self._end(self._choices.setdefault(event.index, _Choice()), event, emitted)
            else:
                emitted.append(event)
        return emitted

    def _emit(self, choice: _Choice, event: TextDelta, emitted: list[Event]) -> None:
        """Emit all that is decided."""
        while (at := choice.held.find(mark := END if choice.is_inside else BEGIN)) >= 0:
            part, choice.held = choice.held[:at], choice.held[at + len(mark) :]
            if not choice.is_inside:
                _emit_text(choice, part, event.index, emitted)
            elif not self._emit_call(choice, part, event.index, emitted):
                _emit_text(choice, f"{BEGIN}{part}{END}", event.index, emitted)
            choice.is_inside = not choice.is_inside
        part = ""
        if not choice.is_inside:
            part = choice.held[: len(choice.held) - _begun(choice.held, BEGIN)]
            choice.held = choice.held[len(part) :]
        _emit_text(choice, part, event.index, emitted, event.logprobs)

    def _end(self, choice: _Choice, event: Finished, emitted: list[Event]) -> None:
        """Emit the rest, including a call that was cut off, and the end."""
        if choice.is_inside:
            if not self._emit_call(choice, choice.held, event.index, emitted):
                _emit_text(choice, BEGIN + choice.held, event.index, emitted)
        else:
            _emit_text(choice, choice.held, event.index, emitted)
        if choice.space and not choice.num_calls:
            emitted.append(TextDelta(choice.space, event.index))
        is_call = choice.num_calls and event.reason == "stop"
        emitted.append(Finished("tool_calls", event.index) if is_call else event)

    def _emit_call(self, choice: _Choice, text: str, index: int, emitted: list[Event]) -> bool:
        """Emit a call; False where the text is none."""
        try:
            call = orjson.loads(text)
        except orjson.JSONDecodeError:
            return False
        if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
            return False
        arguments = call.get("arguments", call.get("parameters", {}))
        if not isinstance(arguments, str):
            arguments = orjson.dumps(arguments).decode()
        emitted.append(ToolCallDelta(choice.num_calls, self._make_id(), name, arguments, index))
        choice.num_calls += 1
        choice.space = ""
        return True


def _emit_text(
    choice: _Choice,
    text: str,
    index: int,
    emitted: list[Event],
    logprobs: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Emit text, except white space at its end, which waits for what follows."""
    text = choice.space + text
    body = text.rstrip()
    choice.space = text[len(body) :]
    if body or logprobs:
        emitted.append(TextDelta(body, index, logprobs))


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of a text may begin a tag."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)
