"""The turns of a conversation: a message each, with what it cost and who said it; and their form in Redis.

A turn is JSON, an OpenAI message with fields of ours. Its role and its tokens come first, in this order and without a
space: that is how the scripts in Redis know them without reading the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.config.specs import HistorySpec
from gateway.protocol.llm.canonical import Media, Message, Reasoning, Text
from gateway.protocol.llm.chat_request_reader import read_messages
from gateway.protocol.llm.chat_request_writer import written_message


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Of one conversation, the system message included."""

    max_turns: int
    max_tokens: int
    max_bytes: int

    @classmethod
    def of(cls, spec: HistorySpec) -> RetentionLimits:
        return cls(spec.max_turns, spec.max_tokens, spec.max_bytes)

    def hold(self, num_turns: int, tokens: int, num_bytes: int, system_bytes: int) -> bool:
        """Whether so much may be kept."""
        return (
            num_turns <= self.max_turns
            and tokens + estimated_of_bytes(system_bytes) <= self.max_tokens
            and num_bytes + system_bytes <= self.max_bytes
        )


def num_dropped(turns: Sequence[Turn], sizes: Sequence[int], system_bytes: int, limits: RetentionLimits) -> int:
    """How many turns must go from the front so that the rest is within the limits; `sizes` are their bytes."""
    at, tokens, num_bytes = 0, sum(turn.tokens for turn in turns), sum(sizes)
    while at < len(turns) and not limits.hold(len(turns) - at, tokens, num_bytes, system_bytes):
        while True:
            tokens -= turns[at].tokens
            num_bytes -= sizes[at]
            at += 1
            if at == len(turns) or turns[at].begins_exchange:
                break
    return at


SYSTEM_ROLES = ("system", "developer")

_BYTES_A_TOKEN = 4
# What engines make of a picture differs by its size and by the model: vLLM's have 256 to 2,000 tokens.
_TOKENS_OF_MEDIA = 1000
# What a turn says of itself beside its message.
_OURS = ("tokens", "estimated", "created", "engine", "arm", "cut")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation. `is_estimated`: no engine has counted its tokens; `is_cut`: its reader left before
    it was whole. `engine` and `arm` are those that answered, empty for what was asked."""

    message: Message
    tokens: int
    created: int = 0  # seconds since 1970
    is_estimated: bool = True
    engine: str = ""
    arm: str = ""
    is_cut: bool = False

    @property
    def begins_exchange(self) -> bool:
        """Whether a conversation may begin with it: a user's message needs none before it."""
        return self.message.role == "user"


def estimated_tokens(message: Message) -> int:
    """About how many tokens a message has, at 4 bytes each."""
    size = sum(len(part.text.encode()) for part in message.parts if isinstance(part, Text))
    size += sum(len(call.name) + len(call.arguments.encode()) for call in message.tool_calls)
    num_media = sum(isinstance(part, Media) for part in message.parts)
    return math.ceil(size / _BYTES_A_TOKEN) + num_media * _TOKENS_OF_MEDIA


def estimated_of_bytes(num_bytes: int) -> int:
    """The same of what is written."""
    return math.ceil(num_bytes / _BYTES_A_TOKEN)


def without_thoughts(message: Message) -> Message:
    """The message as it is kept: what a model thought is told with its answer, and never again."""
    parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
    return Message(message.role, parts, message.tool_calls, message.tool_call_id, message.name)


def written(turn: Turn) -> bytes:
    """A turn as Redis keeps it.

    Raises: GatewayError(UNSUPPORTED) for media that OpenAI's messages have no form of.
    """
    told: dict[str, Any] = written_message(without_thoughts(turn.message))
    fields: dict[str, Any] = {"role": told.pop("role"), "tokens": turn.tokens}
    if turn.is_estimated:
        fields["estimated"] = True
    fields["created"] = turn.created
    if turn.engine:
        fields["engine"] = turn.engine
    if turn.arm:
        fields["arm"] = turn.arm
    if turn.is_cut:
        fields["cut"] = True
    return orjson.dumps(fields | told)


def read(data: bytes) -> Turn:
    """The turn of what `written` wrote.

    Raises: ValueError (orjson's), KeyError or GatewayError where somebody else has written it.
    """
    fields: dict[str, Any] = orjson.loads(data)
    (message,) = read_messages([{name: value for name, value in fields.items() if name not in _OURS}])
    return Turn(
        message,
        int(fields["tokens"]),
        int(fields.get("created", 0)),
        bool(fields.get("estimated", False)),
        fields.get("engine", ""),
        fields.get("arm", ""),
        bool(fields.get("cut", False)),
    )


def written_system(messages: Sequence[Message]) -> bytes:
    """The system messages of a conversation, which stand beside its turns; empty where there are none.

    Raises: GatewayError(UNSUPPORTED).
    """
    return orjson.dumps([written_message(message) for message in messages]) if messages else b""


def read_system(data: bytes) -> tuple[Message, ...]:
    """What `written_system` wrote."""
    return read_messages(orjson.loads(data)) if data else ()


def openai_message(turn: dict[str, Any]) -> dict[str, Any]:
    """A kept turn as OpenAI's API has messages, without what is ours."""
    return {name: value for name, value in turn.items() if name not in _OURS}


def essence(message: Message) -> tuple[Any, ...]:
    """What makes two messages one, where a client sends back what it has read: how its text was cut into parts, the
    names of system roles and what the model thought make no difference."""
    role = "system" if message.role in SYSTEM_ROLES else message.role
    media = tuple((part.kind, part.url) for part in message.parts if isinstance(part, Media))
    calls = tuple((call.id, call.name, _arguments(call.arguments)) for call in message.tool_calls)
    return role, message.text, media, calls, message.tool_call_id


def _arguments(text: str) -> Any:
    """A call's arguments by what they say: clients read them, and write them in their own way."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
