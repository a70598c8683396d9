"""Short helpers that build turns and conversations for tests."""

from gateway.conversations.prompt_assembly import StoredHistory
from gateway.conversations.turns import Turn, written, written_system
from gateway.protocol.llm.canonical import Message, Text, ToolCall
from gateway.protocol.llm.token_estimate import estimated_tokens


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def said(text: str) -> Message:
    return Message("assistant", (Text(text),))


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def calls(id: str, name: str = "clock", arguments: str = "{}") -> Message:
    return Message("assistant", (), (ToolCall(id, name, arguments),))


def result(id: str, text: str = "noon") -> Message:
    return Message("tool", (Text(text),), (), id)


def turn(message: Message, tokens: int | None = None) -> Turn:
    return Turn(message, estimated_tokens(message) if tokens is None else tokens, 1_700_000_000)


def kept(*messages: Message, system: tuple[Message, ...] = ()) -> StoredHistory:
    """A conversation of these messages."""
    turns = tuple(turn(message) for message in messages)
    sizes = tuple(len(written(each)) for each in turns)
    return StoredHistory("epoch", 1, 0, system, len(written_system(system)), turns, sizes)
