"""A request to a language model, and its reply as events, independent of the API: what every translation goes through.

An API reads its requests into a `Generation` and writes one from it; it reads its replies, streamed or whole, into
events and writes them from events. So n APIs need n readers and n writers, and no pair has code of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound or a file. `url` is an address or a `data:` URL; `detail` is what else the part said, by
    OpenAI's names (an image's `detail`, an audio's `format`, a file's `filename`)."""

    kind: str  # image | audio | file
    url: str
    detail: Mapping[str, Any] = field(default_factory=dict)


def data_url(media_type: str, data: str) -> str:
    """The URL that holds these bytes, which are in base64 already."""
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """The media type, and the bytes in base64; None where the URL holds none in base64."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[5:-7].partition(";")[0], data


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought before it answered; `signature` is what its provider proves it by."""

    text: str
    signature: str = ""


Part = Text | Media | Reasoning


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for; `arguments` is JSON as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `tool_call_id` is set where `role` is tool: whose result the parts are."""

    role: str  # system | developer | user | assistant | tool
    parts: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """All its text as one."""
        return "".join([part.text for part in self.parts if isinstance(part, Text)])


def distinguishes_by_name(messages: Sequence[Message]) -> bool:
    """Whether names distinguish participants of one role; if not, an API without names loses nothing."""
    named = {(message.role, message.name) for message in messages if message.name and message.role != "tool"}
    return len({role for role, _ in named}) < len(named)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask to call; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A request for text. It has `messages` or, where the client gave bare text, `prompt`.

    `options` are all other fields that were given, by the names of `llm.sampling_fields`; what stands there has a
    meaning, so a writer that has no place for one must say so (`accepted_by`).
    """

    model: str
    prompt: str | Sequence[int] | None = None
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False  # of a stream: whether its client wants usage told in OpenAI's way (`stream_options`)
    id: str = ""  # the request's own, where its API has one in the body (V2)


# What a reply says, in the order that it says it.


@dataclass(frozen=True, slots=True)
class Started:
    """A reply begins. `id` and `model` are as the engine names them, empty where it does not."""

    id: str = ""
    model: str = ""
    created: int = 0  # seconds since 1970; 0 where the engine does not say


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of choice `index`; `logprobs` are those of its tokens, in OpenAI's chat form ({token, logprob, bytes,
    top_logprobs}), None where none were asked."""

    text: str
    index: int = 0
    logprobs: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks."""

    text: str
    index: int = 0
    signature: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call; `position` counts the calls of a choice. `id` and `name` stand in a call's first delta."""

    position: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Choice `index` is whole. `reason` is OpenAI's: stop, length, tool_calls, content_filter; `stop_sequence` is the
    text that ended it, where the engine says so."""

    reason: str = "stop"
    index: int = 0
    stop_sequence: str | None = None


class TokenUsage(NamedTuple):
    """Tokens of the whole request; `cached` are those of the prompt that the engine had already seen. `is_estimated`:
    the engine has not counted them."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine tells of an error, in a whole reply or in the middle of a stream."""

    message: str
    status: int = 500  # HTTP
    code: str = ""  # the engine's own word for it


Event = Started | TextDelta | ReasoningDelta | ToolCallDelta | Finished | TokenUsage | EngineFailed
