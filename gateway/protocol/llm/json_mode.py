"""OpenAI's `response_format: {type: json_object}` at an engine of Anthropic's messages, which have no such option.

The engine gets one more tool, whose input is any JSON object, and must call it; the call comes back as the text of the
answer. With tools of the client's own the model may call one of these instead, as with OpenAI. LiteLLM does the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.protocol.llm.canonical import Event, Finished, Generation, TextDelta, Tool, ToolCallDelta
from gateway.protocol.llm.translation import ReplyReader

_NAME = "json_tool_call"
_DESCRIPTION = "Gives the answer. Always answer by a call of this tool: its input is the answer, a JSON object."


def json_tool_of(generation: Generation) -> Tool | None:
    """The tool by which the model answers; None where the request wants no JSON object, or must call another tool."""
    options = generation.options
    if options.get("response_format", {}).get("type") != "json_object":
        return None
    if generation.tools and options.get("tool_choice", "auto") not in ("auto", "none"):
        return None
    names = {tool.name for tool in generation.tools}
    name = _NAME
    while name in names:
        name += "_"
    return Tool(name, _DESCRIPTION, {"type": "object", "properties": {}, "additionalProperties": True})


def json_tool_choice(generation: Generation, tool: Tool) -> Any:
    """Chat's `tool_choice` that makes the model call the tool, or one of the client's. Anthropic forces no tool on a
    model that thinks."""
    options = generation.options
    if options.get("thinking_tokens"):
        return "auto"
    if generation.tools and options.get("tool_choice", "auto") == "auto":
        return "required"
    return {"type": "function", "function": {"name": tool.name}}


class JsonToolReader:
    """Reads a reply in which the call of this tool is the answer's text. What the model says beside it is left out; an
    engine that calls no tool has its text told."""

    def __init__(self, reader: ReplyReader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._positions: list[int] = []  # of calls of the tool
        self._num_others = 0
        self._held: list[Event] = []  # text that may stand beside a call

    def feed(self, data: bytes) -> list[Event]:
        return self._converted(self._reader.feed(data))

    def end(self) -> list[Event]:
        return self._converted(self._reader.end())

    def whole(self, status: int, body: bytes) -> list[Event]:
        return self._converted(self._reader.whole(status, body))

    def _converted(self, events: list[Event]) -> list[Event]:
        converted: list[Event] = []
        for event in events:
            if isinstance(event, ToolCallDelta):
                converted += self._call(event)
            elif isinstance(event, TextDelta):
                self._held.append(event)
            elif isinstance(event, Finished):
                converted += self._finish(event)
            else:
                converted.append(event)
        return converted

    def _call(self, event: ToolCallDelta) -> list[Event]:
        if event.name == self._name:
            self._positions.append(event.position)
        if event.position in self._positions:
            is_first = event.position == self._positions[0]  # one answer is enough
            return [TextDelta(event.arguments)] if event.arguments and is_first else []
        self._num_others += bool(event.name)
        return [replace(event, position=event.position - sum(at < event.position for at in self._positions))]

    def _finish(self, event: Finished) -> list[Event]:
        if not self._positions:
            return [*self._held, event]
        has_only_text = event.reason == "tool_calls" and not self._num_others
        return [replace(event, reason="stop") if has_only_text else event]
