"""The turns of a conversation (a message each, with its tokens and origin), their form in Redis, and retention limits.

A turn is JSON, an OpenAI message with additional fields. Its role and tokens come first, in this order and without
spaces, so that the Redis scripts can read them without parsing the rest.

Retention drops whole exchanges, the oldest first: an exchange is a user's message and everything up to the next one, so
that no answer stays without its question and no tool result without its call. The system message is stored beside the
turns: it counts, and stays. `num_dropped` does in Python what the script in `store.py` does in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.config.specs import HistorySpec
from gateway.protocol.llm.canonical import Media, Message, Reasoning
from gateway.protocol.llm.chat_request import read_messages, written_message
from gateway.protocol.llm.token_estimate import tokens_of_bytes


def is_within(limits: HistorySpec, num_turns: int, tokens: int, num_bytes: int, system_bytes: int) -> bool:
    """Whether a conversation of this size, system message included, is within the limits."""
    return (
        num_turns <= limits.max_turns
        and tokens + tokens_of_bytes(system_bytes) <= limits.max_tokens
        and num_bytes + system_bytes <= limits.max_bytes
    )


def num_dropped(turns: Sequence[Turn], sizes: Sequence[int], system_bytes: int, limits: HistorySpec) -> int:
    """The number of turns to drop from the front so that the rest is within the limits; `sizes` are their bytes."""
    at, tokens, num_bytes = 0, sum(turn.tokens for turn in turns), sum(sizes)
    while at < len(turns) and not is_within(limits, len(turns) - at, tokens, num_bytes, system_bytes):
        while True:
            tokens -= turns[at].tokens
            num_bytes -= sizes[at]
            at += 1
            if at == len(turns) or turns[at].begins_exchange:
                break
    return at


SYSTEM_ROLES = ("system", "developer")

# The additional fields of a turn.
_OURS = ("tokens", "estimated", "created", "engine", "arm", "cut")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation. `is_estimated`: no engine has counted its tokens; `is_cut`: the client
    disconnected before its end. `engine` and `arm` answered it; empty for a question."""

    message: Message
    tokens: int
    created: int = 0  # seconds since 1970
    is_estimated: bool = True
    engine: str = ""
    arm: str = ""
    is_cut: bool = False

    @property
    def begins_exchange(self) -> bool:
        """Whether a conversation may begin with it: a user's message does."""
        return self.message.role == "user"


def without_reasoning(message: Message) -> Message:
    """The message as stored: reasoning is part of the reply only."""
    parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
    return Message(message.role, parts, message.tool_calls, message.tool_call_id, message.name)


def written(turn: Turn) -> bytes:
    """A turn in its form in Redis.

    Raises: GatewayError(UNSUPPORTED) for media that OpenAI messages cannot represent.
    """
    message: dict[str, Any] = written_message(without_reasoning(turn.message))
    fields = {"role": message.pop("role"), "tokens": turn.tokens}
    fields |= {"estimated": True} if turn.is_estimated else {}
    fields["created"] = turn.created
    optional = {"engine": turn.engine, "arm": turn.arm, "cut": turn.is_cut}
    fields |= {name: value for name, value in optional.items() if value}
    return orjson.dumps(fields | message)


def read(data: bytes) -> Turn:
    """Parse the form of `written`.

    Raises: ValueError (orjson's), KeyError or GatewayError if it was not written by a gateway.
    """
    fields: dict[str, Any] = orjson.loads(data)
    (message,) = read_messages([openai_message(fields)])
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
    """The system messages of a conversation in their form in Redis; empty if there are none.

    Raises: GatewayError(UNSUPPORTED).
    """
    return orjson.dumps([written_message(message) for message in messages]) if messages else b""


def read_system(data: bytes) -> tuple[Message, ...]:
    """Parse the form of `written_system`."""
    return read_messages(orjson.loads(data)) if data else ()


def openai_message(turn: dict[str, Any]) -> dict[str, Any]:
    """A stored turn as an OpenAI message, without the additional fields."""
    return {name: value for name, value in turn.items() if name not in _OURS}


def essence(message: Message) -> tuple[Any, ...]:
    """The part of a message that identifies it when a client sends it back: the division into parts, the name of the
    system role and reasoning do not matter."""
    role = "system" if message.role in SYSTEM_ROLES else message.role
    media = tuple((part.kind, part.url) for part in message.parts if isinstance(part, Media))
    calls = tuple((call.id, call.name, _arguments(call.arguments)) for call in message.tool_calls)
    return role, message.text, media, calls, message.tool_call_id


def _arguments(text: str) -> Any:
    """A call's arguments as a value: clients reformat them."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
