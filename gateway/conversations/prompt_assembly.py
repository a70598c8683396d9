"""What an engine is told of a conversation: what is kept, and what the client says now.

A client may send

1. only what is new: a message of the user's, or tools' results. What is kept goes before it;
2. all of the conversation, as clients do that keep it themselves. It can be told by the assistant's messages in it:
   where these go on from what is kept, only what stands behind is new, and the engine is told what the client sent;
3. the conversation as it should have been: an earlier message edited, an answer left out so that it comes anew. Then
   the client is right, and what is kept is replaced by it.

A client that sends the end of what is kept, since it has room for no more, is told from 3 by that end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.conversations.turns import SYSTEM_ROLES, Turn, essence
from gateway.protocol.llm.canonical import Message, Text


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation as it was read. `epoch` names its life, from its first write until it is deleted or forgotten;
    empty: there is none. `revision` counts its writes, `num_dropped` the turns that are gone from its front."""

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

    @property
    def text(self) -> str:
        """All of it as one text."""
        return "".join([turn.message.text for turn in self.turns])


NOTHING = Kept()


@dataclass(frozen=True, slots=True)
class Completed:
    """A request, completed. `messages` is what the engine is told, `new` what is to be kept of it, `system` what it
    said before all turns. `replaces`: what is kept is not what the client tells."""

    messages: tuple[Message, ...]
    new: tuple[Message, ...]
    system: tuple[Message, ...] = ()
    num_kept: int = 0  # turns among `messages` that are kept already
    replaces: bool = False
    prompt: str | None = None  # told in place of `messages` where a conversation is one text


def complete(kept: Kept, asked: Sequence[Message]) -> Completed:
    """What to tell an engine for a request of messages."""
    num_system = next((at for at, message in enumerate(asked) if message.role not in SYSTEM_ROLES), len(asked))
    system, told = tuple(asked[:num_system]), tuple(asked[num_system:])
    before = system or kept.system
    turns = tuple(turn.message for turn in kept.turns)
    if not turns or not any(message.role == "assistant" for message in told[:-1]):  # the last may begin the answer
        return Completed((*before, *turns, *told), told, system, len(turns))
    found = _known_until(turns, told)
    if found is None:
        return Completed((*before, *told), told, system, 0, replaces=True)
    new = told[found:]
    if found < len(turns):  # only the end of what is kept
        return Completed((*before, *turns, *new), new, system, len(turns))
    return Completed((*before, *told), new, system, len(turns))


def complete_text(kept: Kept, prompt: str) -> Completed:
    """What to tell an engine for a prompt that goes on with a text."""
    text = kept.text
    new = prompt[len(text) :] if text and prompt.startswith(text) else prompt
    return Completed((), (Message("user", (Text(new),)),), (), len(kept.turns), prompt=text + new)


def only_new(asked: Sequence[Message]) -> Completed:
    """A request whose conversation cannot be read: the engine is told what the client sent, and what stands behind the
    last answer in it is taken for new."""
    last = max((at for at, message in enumerate(asked) if message.role == "assistant"), default=-1)
    new = tuple(message for message in asked[last + 1 :] if message.role not in SYSTEM_ROLES)
    return Completed(tuple(asked), new)


def _known_until(turns: Sequence[Message], told: Sequence[Message]) -> int | None:
    """How many messages of `told` end with the last turn, where all before it are turns too; None where none do.

    Behind them may stand whole exchanges that were never kept, since Redis was away: but only where `told` has all that
    is kept, since the end of it alone may be met by chance, where answers are alike.
    """
    kept, said = [essence(message) for message in turns], [essence(message) for message in told]
    last = max(at for at, message in enumerate(told[:-1]) if message.role == "assistant")
    for end in range(len(said), 0, -1):
        length = min(end, len(kept))
        if said[end - length : end] == kept[-length:] and (length == len(kept) or end > last):
            return end
    return None
