"""Tool calls in a model's text, as events."""

from itertools import count

import pytest

from engines.host.openai.tool_calls import ToolCallReader
from gateway.protocol.llm.canonical import Event, Finished, TextDelta, TokenUsage, ToolCallDelta

ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
CALL = ToolCallDelta(0, "call_1", "weather", '{"city":"Rome"}')


def read(*texts: str, reason: str = "stop") -> list[Event]:
    """The events of a stream of these texts, with adjacent text deltas joined."""
    numbers = count(1)
    reader = ToolCallReader(lambda: f"call_{next(numbers)}")
    results = [event for text in texts for event in reader.read([TextDelta(text)])]
    results += reader.read([Finished(reason), TokenUsage(1, 2)])
    return joined(results)


def joined(events: list[Event]) -> list[Event]:
    out: list[Event] = []
    for event in events:
        if out and isinstance(event, TextDelta) and isinstance(out[-1], TextDelta):
            out[-1] = TextDelta(out[-1].text + event.text)
        else:
            out.append(event)
    return out


CALLED, ENDED, USED = Finished("tool_calls"), Finished("stop"), TokenUsage(1, 2)
TABLE: list[tuple[str, list[Event]]] = [
    ("Hello, world. \n", [TextDelta("Hello, world. \n"), ENDED, USED]),
    ("\n a < b <tool", [TextDelta("\n a < b <tool"), ENDED, USED]),
    ("", [ENDED, USED]),
    (f"\n{ROME}\n", [CALL, CALLED, USED]),
    (f"Let me see.\n\n{ROME}", [TextDelta("Let me see."), CALL, CALLED, USED]),
    (
        f'{ROME}\n<tool_call>{{"name": "f", "parameters": {{}}}}</tool_call> Done.',
        [CALL, ToolCallDelta(1, "call_2", "f", "{}"), TextDelta(" Done."), CALLED, USED],
    ),
    ('<tool_call>{"name": "f"}</tool_call>', [ToolCallDelta(0, "call_1", "f", "{}"), CALLED, USED]),
    ('<tool_call>{"name": "f", "arguments": "{}"}', [ToolCallDelta(0, "call_1", "f", "{}"), CALLED, USED]),
    ("<tool_call>no call</tool_call>", [TextDelta("<tool_call>no call</tool_call>"), ENDED, USED]),
    ('<tool_call>{"name": 5}</tool_call> x', [TextDelta('<tool_call>{"name": 5}</tool_call> x'), ENDED, USED]),
    ('a <tool_call>\n{"name": "f", "arg', [TextDelta('a <tool_call>\n{"name": "f", "arg'), ENDED, USED]),
]


@pytest.mark.parametrize("text, events", TABLE)
def test_calls_stand_out_of_the_text_however_it_is_cut(text: str, events: list[Event]) -> None:
    """A stream cut anywhere gives the same text and the same calls."""
    assert read(text) == events
    assert read(*text) == events
    for size in (2, 5, 11):
        assert read(*[text[at : at + size] for at in range(0, len(text), size)]) == events


def test_a_cut_off_call_is_still_reported() -> None:
    """The finish reason stays "length" where the limit ended the text, with or without calls."""
    assert read(ROME, reason="length") == [CALL, Finished("length"), USED]


def test_choices_are_read_apart() -> None:
    """A mark that begins in one choice does not end in another."""
    reader = ToolCallReader(lambda: "call")
    events = [TextDelta("<tool_"), TextDelta("b", 1), TextDelta('call>{"name": "f"}</tool_call>'), Finished("stop", 1)]
    assert reader.read(events) == [TextDelta("b", 1), ToolCallDelta(0, "call", "f", "{}"), Finished("stop", 1)]


def test_log_probabilities_are_kept() -> None:
    """Each token keeps its logprobs, also while its text is held back."""
    reader = ToolCallReader(lambda: "call")
    logprobs = [{"token": "<", "logprob": -1.0}]
    assert reader.read([TextDelta("<", 0, logprobs), TextDelta("b")]) == [TextDelta("", 0, logprobs), TextDelta("<b")]
