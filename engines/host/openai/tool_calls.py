"""Calls of tools in a model's text, as events of their own.

Qwen's templates, and those that followed Hermes, have the model write each call as JSON between marks:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Rome"}}
    </tool_call>

Text that begins like a mark is held back until it is one, or none. What stands between marks and is no call stays text.
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
    """What has come of one choice and is not told yet."""

    held: str = ""  # may be the beginning of a mark; between the marks, all that has come
    space: str = ""  # at the end of the text so far: before a call it is none of the answer's
    is_inside: bool = False  # between the marks
    num_calls: int = 0


class ToolCallReader:
    """Takes the calls out of the text of one reply."""

    def __init__(self, make_id: Callable[[], str]) -> None:
        """`make_id` makes the id of a call, which is its own among all."""
        self._make_id = make_id
        self._choices: dict[int, _Choice] = {}

    def __repr__(self) -> str:
        return f"<ToolCallReader: {sum(choice.num_calls for choice in self._choices.values())} calls>"

    def read(self, events: Iterable[Event]) -> list[Event]:
        """The events, with calls in place of their text. Log probabilities stay with what is left of the text."""
        told: list[Event] = []
        for event in events:
            if isinstance(event, TextDelta):
                choice = self._choices.setdefault(event.index, _Choice())
                choice.held += event.text
                self._tell(choice, event, told)
            elif isinstance(event, Finished):
                self._end(self._choices.setdefault(event.index, _Choice()), event, told)
            else:
                told.append(event)
        return told

    def _tell(self, choice: _Choice, event: TextDelta, told: list[Event]) -> None:
        """Whatever can be told by now."""
        while (at := choice.held.find(mark := END if choice.is_inside else BEGIN)) >= 0:
            piece, choice.held = choice.held[:at], choice.held[at + len(mark) :]
            if not choice.is_inside:
                _tell_text(choice, piece, event.index, told)
            elif not self._tell_call(choice, piece, event.index, told):
                _tell_text(choice, f"{BEGIN}{piece}{END}", event.index, told)
            choice.is_inside = not choice.is_inside
        piece = ""
        if not choice.is_inside:
            piece = choice.held[: len(choice.held) - _begun(choice.held, BEGIN)]
            choice.held = choice.held[len(piece) :]
        _tell_text(choice, piece, event.index, told, event.logprobs)

    def _end(self, choice: _Choice, event: Finished, told: list[Event]) -> None:
        """What is left, a call that was cut off too, and the end."""
        if choice.is_inside:
            if not self._tell_call(choice, choice.held, event.index, told):
                _tell_text(choice, BEGIN + choice.held, event.index, told)
        else:
            _tell_text(choice, choice.held, event.index, told)
        if choice.space and not choice.num_calls:
            told.append(TextDelta(choice.space, event.index))
        is_call = choice.num_calls and event.reason == "stop"
        told.append(Finished("tool_calls", event.index) if is_call else event)

    def _tell_call(self, choice: _Choice, text: str, index: int, told: list[Event]) -> bool:
        """Whether it is a call."""
        call = _call(text)
        if call is None:
            return False
        name, arguments = call
        told.append(ToolCallDelta(choice.num_calls, self._make_id(), name, arguments, index))
        choice.num_calls += 1
        choice.space = ""
        return True


def _tell_text(
    choice: _Choice,
    text: str,
    index: int,
    told: list[Event],
    logprobs: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """The text but for space at its end, which waits for what follows."""
    text = choice.space + text
    body = text.rstrip()
    choice.space = text[len(body) :]
    if body or logprobs:
        told.append(TextDelta(body, index, logprobs))


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)


def _call(text: str) -> tuple[str, str] | None:
    """The name and the arguments as JSON; None where it is no call."""
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return None
    arguments = told.get("arguments", told.get("parameters", {}))
    return told["name"], arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
