"""Text of tokens as they come: never half a character, and all of it together is the text of all tokens.

`tokenizers` has a DecodeStream, which raises where bytes that are no UTF-8 follow a whole character, has no end, and
decodes a growing list while it waits. These two do neither, and cost the same at every token."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

import tokenizers

from engines.paged.text.token_bytes import Pieces, TokenKind

_UNKNOWN = "\ufffd"  # what bytes that are no UTF-8 are decoded to
# A character has at most four bytes: what still ends in U+FFFD after as many tokens will not become one.
_MOST_TOKENS_OF_A_CHARACTER = 4


class Detokenizer(Protocol):
    """Of one sequence."""

    def push(self, token_ids: Iterable[int]) -> str:
        """What the tokens add to the text; bytes of an unfinished character wait for the next."""
        ...

    def flush(self) -> str:
        """What waits, at the end: a U+FFFD where it is no character."""
        ...


def make_detokenizer(backend: tokenizers.Tokenizer, pieces: Pieces, skipped: frozenset[int]) -> Detokenizer:
    """`skipped` are ids that are no text: special tokens, where they are not to be seen."""
    made = ByteDetokenizer if pieces.kind is TokenKind.BYTES else WindowDetokenizer
    return made(backend, pieces, skipped)


class ByteDetokenizer:
    """Where a text is the sequence of its tokens' bytes."""

    def __init__(self, _backend: tokenizers.Tokenizer, pieces: Pieces, skipped: frozenset[int]) -> None:
        self._pieces, self._skipped = pieces, skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        skipped, bytes_of = self._skipped, self._pieces.bytes_of
        return self._decoder.decode(b"".join([bytes_of(each) for each in token_ids if each not in skipped]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """Where only the tokenizer knows: what new tokens add is what its text of them and the last ones before has more
    than that of the last ones alone. A run of bytes waits for the token after it, as the run is decoded whole or not
    at all."""

    def __init__(self, backend: tokenizers.Tokenizer, pieces: Pieces, skipped: frozenset[int]) -> None:
        self._backend, self._pieces, self._skipped = backend, pieces, skipped
        self._context: list[int] = []  # the tokens of the last text that was told
        self._told = ""  # their text alone
        self._waiting: list[int] = []
        self._ready = 0  # of those that wait, which no later token changes

    def push(self, token_ids: Iterable[int]) -> str:
        has_bytes = self._pieces.kind is TokenKind.FALLBACK
        for token_id in token_ids:
            if token_id in self._skipped or self._backend.id_to_token(token_id) is None:
                continue
            self._waiting.append(token_id)
            if not (has_bytes and self._pieces.is_byte(token_id)):
                self._ready = len(self._waiting)
        if not self._ready:
            return ""
        text = self._decode(self._context + self._waiting[: self._ready])
        if len(text) <= len(self._told) or self._may_be_half(text):
            return ""
        new = text[len(self._told) :]
        self._context, self._waiting = self._waiting[: self._ready], self._waiting[self._ready :]
        self._ready, self._told = 0, self._decode(self._context)
        return new

    def flush(self) -> str:
        text = self._decode(self._context + self._waiting)[len(self._told) :]
        self._context, self._waiting, self._ready, self._told = [], [], 0, ""
        return text

    def _may_be_half(self, text: str) -> bool:
        is_open = self._pieces.kind is TokenKind.TEXT and text.endswith(_UNKNOWN)
        return is_open and self._ready < _MOST_TOKENS_OF_A_CHARACTER

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=False))
