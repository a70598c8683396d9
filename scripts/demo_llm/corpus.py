"""The corpus: stories and conversations, each from its own seed, so that any part of it can be written again alone.

python scripts/demo_llm/corpus.py [NUMBER]     # read some of it
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from demo_llm.chats import Chat, Message, draw_chat
from demo_llm.stories import draw_story

STORY_SHARE = 0.3
TITLE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Document:
    """A text, or a conversation; the other is empty."""

    text: str = ""
    chat: Chat = ()

    @property
    def plain(self) -> str:
        """The whole text."""
        return self.text or "\n".join(message.content for message in self.chat)


def documents(seed: int, number: int, split: str = "train") -> Iterator[Document]:
    """This many documents. Splits share no seed: the held-out documents are new draws from the same plots."""
    for index in range(number):
        yield document(random.Random(f"{split} {seed} {index}"))


def document(chance: random.Random) -> Document:
    """A story as plain text, or a conversation."""
    if chance.random() >= STORY_SHARE:
        return Document(chat=draw_chat(chance))
    story = draw_story(chance, sequels=int(chance.random() < 0.05))
    return Document(text=f"{story.title}\n\n{story.text}" if chance.random() < TITLE_SHARE else story.text)


def digest(some: Iterator[Document]) -> str:
    """Sixteen hexadecimal digits that identify a corpus."""
    found = hashlib.sha256()
    for one in some:
        found.update(repr(one).encode())
    return found.hexdigest()[:16]


__all__ = ["Chat", "Document", "Message", "digest", "document", "documents"]
