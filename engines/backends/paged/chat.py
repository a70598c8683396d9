"""A conversation as the model's chat template takes it: the host's front parses it once and hands this value over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engines.core.errors import EngineError, ErrorCode
from gateway.protocol.llm.canonical import Media, Message, Tool
from gateway.protocol.llm.templates import template_message, template_tool

ChatValue = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be rendered; `options` are further variables of the template."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    continues: bool = False  # the last message is the beginning of the answer
    adds_prompt: bool = True  # of the assistant's turn
    options: Mapping[str, Any] = field(default_factory=dict)


def chat_value(messages: Iterable[Message], tools: Iterable[Tool]) -> ChatValue:
    """`messages` and `tools` in the template's form, of builtins alone: the value crosses to the engine's process.

    Raises: EngineError(UNSUPPORTED) for images, sounds and files.
    """
    messages = tuple(messages)
    if any(isinstance(part, Media) for message in messages for part in message.parts):
        raise EngineError(
            ErrorCode.UNSUPPORTED,
            "'messages' hold an image, a sound or a file, and this engine's models read text alone",
        )
    return {"messages": [*map(template_message, messages)], "tools": [*map(template_tool, tools)]}
