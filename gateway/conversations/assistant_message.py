"""The assistant's message of one reply, collected from the events that the client receives."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Message,
    Text,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolCallDelta,
)
from gateway.protocol.llm.translation import ReplyWriter


class AssistantMessage:
    """Collects the first choice of a reply; other choices are ignored."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, list[str]] = {}  # position -> id, name, arguments
        self.used: TokenUsage | None = None
        self.has_failed = False

    def record(self, events: Sequence[Event]) -> None:
        """Add events of the reply."""
        for event in events:
            kind = type(event)
            if kind is TextDelta:
                if event.index == 0:  # type: ignore[union-attr]  # mypy does not narrow by `type(...) is`
                    self._text.append(event.text)  # type: ignore[union-attr]
            elif isinstance(event, ToolCallDelta):
                if event.index == 0:
                    self._add_call(event)
            elif isinstance(event, TokenUsage):
                self.used = None if event.is_estimated else event
            elif isinstance(event, EngineFailed):
                self.has_failed = True

    def message(self, without: str = "", *, is_cut: bool = False) -> Message | None:
        """The message; None if it is empty. `without` is a prefix that the engine repeated; a cut answer has no tool
        calls, because they may be incomplete."""
        text = "".join(self._text).removeprefix(without)
        calls = () if is_cut else tuple(ToolCall(*self._calls[at]) for at in sorted(self._calls))
        return Message("assistant", (Text(text),) if text else (), calls) if text or calls else None

    def _add_call(self, event: ToolCallDelta) -> None:
        call = self._calls.setdefault(event.position, ["", "", ""])
        call[0] = call[0] or event.id
        call[1] = call[1] or event.name
        call[2] += event.arguments


class RecordingWriter:
    """A `ReplyWriter` that also records its events in an `AssistantMessage`: exactly what the client receives."""

    def __init__(self, writer: ReplyWriter, answer: AssistantMessage) -> None:
        self._writer = writer
        self._answer = answer

    @property
    def head_bytes(self) -> int | None:
        return self._writer.head_bytes

    def feed(self, events: Sequence[Event]) -> bytes:
        self._answer.record(events)
        return self._writer.feed(events)

    def end(self) -> bytes:
        return self._writer.end()

    def whole(self, events: Sequence[Event]) -> tuple[int, bytes]:
        self._answer.record(events)
        return self._writer.whole(events)
