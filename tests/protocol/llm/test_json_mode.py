"""A JSON object from an engine of Anthropic's messages: a tool's call, read as text."""

import pytest

from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    ReasoningDelta,
    Started,
    TextDelta,
    Tool,
    ToolCallDelta,
)
from gateway.protocol.llm.json_mode import JsonToolReader, json_tool_choice, json_tool_of

JSON = {"response_format": {"type": "json_object"}}
ADD = Tool("add")


class Told:
    """A reader that reads these events."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def feed(self, data: bytes) -> list[Event]:
        return [self._events.pop(0)] if self._events else []

    def end(self) -> list[Event]:
        return self._events

    def whole(self, status: int, body: bytes) -> list[Event]:
        return self._events


def call(position: int, name: str = "", arguments: str = "") -> ToolCallDelta:
    return ToolCallDelta(position, f"id{position}" if name else "", name, arguments)


TEXT, OTHER = TextDelta("{"), TextDelta("}")
CASES: dict[str, tuple[list[Event], list[Event]]] = {
    "a call": (
        [Started(), call(0, "it"), call(0, arguments="{"), call(0, arguments="}"), Finished("tool_calls")],
        [Started(), TEXT, OTHER, Finished("stop")],
    ),
    "text beside it": (
        [TextDelta("Here:"), call(0, "it"), call(0, arguments="{"), TextDelta("."), Finished("tool_calls")],
        [TEXT, Finished("stop")],
    ),
    "text alone": ([TEXT, OTHER, Finished("stop")], [TEXT, OTHER, Finished("stop")]),
    "thoughts": (
        [ReasoningDelta("hm"), call(0, "it", "{"), Finished("length")],
        [ReasoningDelta("hm"), TEXT, Finished("length")],
    ),
    "another tool's call": (
        [call(0, "it"), call(0, arguments="{"), call(1, "add"), call(1, arguments="{}"), Finished("tool_calls")],
        [TEXT, ToolCallDelta(0, "id1", "add"), ToolCallDelta(0, arguments="{}"), Finished("tool_calls")],
    ),
    "two answers": ([call(0, "it", "{"), call(1, "it", "}"), Finished("tool_calls")], [TEXT, Finished("stop")]),
    "a failure": ([TEXT, EngineFailed("x")], [EngineFailed("x")]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_text(case: str) -> None:
    """Whole, streamed, and at its end: the tool's input is the text, and other calls stay calls."""
    events, expected = CASES[case]
    assert JsonToolReader(Told(list(events)), "it").whole(200, b"") == expected
    assert JsonToolReader(Told(list(events)), "it").end() == expected
    reader = JsonToolReader(Told(list(events)), "it")
    assert [event for _ in events for event in reader.feed(b"")] == expected


@pytest.mark.parametrize(
    ("generation", "choice"),
    [
        (Generation("m", options=JSON), {"type": "function", "function": {"name": "json_tool_call"}}),
        (Generation("m", tools=(ADD,), options=JSON), "required"),
        (
            Generation("m", tools=(ADD,), options=JSON | {"tool_choice": "none"}),
            {"type": "function", "function": {"name": "json_tool_call"}},
        ),
        (Generation("m", options=JSON | {"thinking_tokens": 1024}), "auto"),
    ],
)
def test_the_model_must_call_it(generation: Generation, choice: object) -> None:
    """The call is forced, but for a model that thinks, on which Anthropic forces none."""
    tool = json_tool_of(generation)
    assert tool is not None
    assert json_tool_choice(generation, tool) == choice


@pytest.mark.parametrize(
    "generation",
    [
        Generation("m"),
        Generation("m", options={"response_format": {"type": "json_schema", "json_schema": {}}}),
        Generation("m", tools=(ADD,), options=JSON | {"tool_choice": "required"}),
    ],
)
def test_requests_that_need_no_tool(generation: Generation) -> None:
    """A schema has a field of its own, and a call that the client requires is no JSON text."""
    assert json_tool_of(generation) is None


def test_a_client_s_tool_of_that_name() -> None:
    """The tool has a name that no tool of the client's has."""
    tool = json_tool_of(Generation("m", tools=(Tool("json_tool_call"),), options=JSON))
    assert tool is not None
    assert tool.name == "json_tool_call_"
