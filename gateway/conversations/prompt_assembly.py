"""Assembles the prompt of a conversation from the stored history and the client's request.

A client may send

1. only the new messages (a user's message or tool results): the history is prepended;
2. the whole conversation, recognised by its assistant messages: if they continue the history, only the messages behind
   it are new, and the engine receives the client's messages;
3. a changed conversation (an edited message, a removed answer): the client is right, and replaces the history.

A client that sends only the end of the history, because of its own limits, differs from 3 by that matching end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.conversations.turns import SYSTEM_ROLES, Turn, essence
from gateway.protocol.llm.canonical import Message, Text


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """A conversation as read from Redis. `epoch` identifies its lifetime, from its first write until it is deleted or
    expires; empty: there is none. `revision` counts writes, `num_dropped` the turns dropped from its front."""

    epoch: str = ""
    revision: int = 0
    num_dropped: int = 0
    system: tuple[Message, ...] = ()
    system_bytes: int = 0
    turns: tuple[Turn, ...] = ()
    sizes: tuple[int, ...] = ()  # bytes of each turn

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)


NOTHING = StoredHistory()


@dataclass(frozen=True, slots=True)
class CompletedPrompt:
    """A completed request: `messages` for the engine, `new` to be stored, `system` messages of the request. `replaces`:
    the client's conversation differs from the stored one and replaces it."""

    messages: tuple[Message, ...]
    new: tuple[Message, ...]
    system: tuple[Message, ...] = ()
    num_stored: int = 0  # turns among `messages` that are already stored
    replaces: bool = False
    prompt: str | None = None  # in place of `messages` where a conversation is one text


def complete(history: StoredHistory, request: Sequence[Message]) -> CompletedPrompt:
    """Complete a request of messages."""
    num_system = next((at for at, message in enumerate(request) if message.role not in SYSTEM_ROLES), len(request))
    system, messages = tuple(request[:num_system]), tuple(request[num_system:])
    before = system or history.system
    turns = tuple(turn.message for turn in history.turns)
    if not turns or not any(message.role == "assistant" for message in messages[:-1]):  # the last may begin the answer
        return CompletedPrompt((*before, *turns, *messages), messages, system, len(turns))
    end = _matched_end(turns, messages)
    if end is None:
        return CompletedPrompt((*before, *messages), messages, system, 0, replaces=True)
    new = messages[end:]
    if end < len(turns):  # only the end of the history
        return CompletedPrompt((*before, *turns, *new), new, system, len(turns))
    return CompletedPrompt((*before, *messages), new, system, len(turns))


def complete_text(history: StoredHistory, prompt: str) -> CompletedPrompt:
    """Complete a text prompt."""
    text = "".join([turn.message.text for turn in history.turns])
    new = prompt[len(text) :] if text and prompt.startswith(text) else prompt
    return CompletedPrompt((), (Message("user", (Text(new),)),), (), len(history.turns), prompt=text + new)


def only_new(request: Sequence[Message]) -> CompletedPrompt:
    """A request whose history cannot be read: the engine receives the client's messages, and those after the last
    answer count as new."""
    last = max((at for at, message in enumerate(request) if message.role == "assistant"), default=-1)
    new = tuple(message for message in request[last + 1 :] if message.role not in SYSTEM_ROLES)
    return CompletedPrompt(tuple(request), new)


def _matched_end(turns: Sequence[Message], messages: Sequence[Message]) -> int | None:
    """The number of `messages` up to the last stored turn, if all before it are stored turns too; None otherwise.

    Exchanges that were never stored, because Redis was unavailable, may follow, but only if `messages` contains the
    whole history: its end alone may match by chance where answers are alike.
    """
    history, sent = [essence(message) for message in turns], [essence(message) for message in messages]
    last = max(at for at, message in enumerate(messages[:-1]) if message.role == "assistant")
    for end in range(len(sent), 0, -1):
        length = min(end, len(history))
        if sent[end - length : end] == history[-length:] and (length == len(history) or end > last):
            return end
    return None
