"""Tokens to bytes, and text of tokens as they come: never half a character, and in sum the text of all tokens.

`tokenizers` has a DecodeStream, which raises where bytes that are no UTF-8 follow a whole character, has no end, and
decodes a growing list while it waits. The detokenizers here do neither, at the same cost for every token.
"""

from __future__ import annotations

import codecs
import json
import re
from enum import Enum
from typing import Any

import tokenizers

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # sentencepiece's space


class TokenKind(Enum):
    BYTES = "bytes"  # a text is the sequence of its tokens' bytes: GPT-2's ByteLevel
    FALLBACK = "fallback"  # tokens are text, some are one byte each: sentencepiece's <0x0A>
    TEXT = "text"  # anything else


class TokenTable:
    """The bytes of a tokenizer's tokens, as far as its decoder defines them for a single token."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        decoders = _decoders(backend)
        names = [decoder["type"] for decoder in decoders]
        self.kind = TokenKind.FALLBACK if "ByteFallback" in names else TokenKind.TEXT
        if names == ["ByteLevel"]:
            self.kind = TokenKind.BYTES
        self._has_spaces = "Metaspace" in names or any(
            decoder["type"] == "Replace" and decoder["pattern"] == {"String": _SPACE} for decoder in decoders
        )
        self._cache: dict[int, bytes] = {}

    @property
    def is_sequence(self) -> bool:
        """Whether a text's bytes are those of its tokens in order (except a space at its beginning)."""
        return self.kind is not TokenKind.TEXT or self._has_spaces

    def is_byte(self, token_id: int) -> bool:
        """Whether a fallback token stands for one byte, which may be part of a character."""
        token = self._backend.id_to_token(token_id)
        return token is not None and _BYTE.fullmatch(token) is not None

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes in the middle of a text; none where there is no such token."""
        data = self._cache.get(token_id)
        if data is None:
            data = self._cache[token_id] = self._bytes_of(token_id)
        return data

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.kind is TokenKind.BYTES:
            return _from_byte_level(token)
        if self.kind is TokenKind.FALLBACK and (byte := _BYTE.fullmatch(token)):
            return bytes.fromhex(byte[1])
        if self._has_spaces:
            return token.replace(_SPACE, " ").encode()
        return str(self._backend.decode([token_id], skip_special_tokens=False)).encode()


def _decoders(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The decoder's parts, from its JSON."""
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _from_byte_level(token: str) -> bytes:
    """A token of printable letters that stand for bytes; one with another letter (some added ones) is its own text."""
    try:
        return bytes([_BYTE_OF[letter] for letter in token])
    except KeyError:
        return token.encode()


# GPT-2's letter of each byte: the byte itself where it is printable, else one from 256 on.
_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_OF = {chr(byte): byte for byte in _PRINTED}
_BYTE_OF |= {chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(_PRINTED)))}

_UNKNOWN = "\ufffd"  # replaces bytes that are no UTF-8
# A character has at most four bytes: a text that ends in U+FFFD after as many tokens does not become one.
_MOST_TOKENS_OF_A_CHARACTER = 4


class ByteDetokenizer:
    """For texts that are the sequence of their tokens' bytes. `skipped` tokens produce no text."""

    def __init__(self, _backend: tokenizers.Tokenizer, table: TokenTable, skipped: frozenset[int]) -> None:
        self._table, self._skipped = table, skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that a token adds; bytes of an unfinished character wait for the next token."""
        return "" if token_id in self._skipped else self._decoder.decode(self._table.bytes_of(token_id))

    def flush(self) -> str:
        """The remaining text at the end, U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any tokenizer: new tokens add what the text of the last tokens and the new ones has beyond that of the last
    ones alone. A run of byte tokens waits for the token after it, as the run is decoded as a whole or not at all."""

    def __init__(self, backend: tokenizers.Tokenizer, table: TokenTable, skipped: frozenset[int]) -> None:
        self._backend, self._table, self._skipped = backend, table, skipped
        self._context: list[int] = []  # the tokens of the last emitted text
        self._emitted = ""  # the text of `_context`
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        kind = self._table.kind
        if token_id in self._skipped or self._backend.id_to_token(token_id) is None:
            return ""
        self._waiting.append(token_id)
        if kind is TokenKind.FALLBACK and self._table.is_byte(token_id):
            return ""
        text = self._decode(self._context + self._waiting)
        is_open = kind is TokenKind.TEXT and text.endswith(_UNKNOWN)
        if len(text) <= len(self._emitted) or (is_open and len(self._waiting) < _MOST_TOKENS_OF_A_CHARACTER):
            return ""
        new = text[len(self._emitted) :]
        self._context, self._waiting = self._waiting, []
        self._emitted = self._decode(self._context)
        return new

    def flush(self) -> str:
        text = self._decode(self._context + self._waiting)[len(self._emitted) :]
        self._context, self._waiting, self._emitted = [], [], ""
        return text

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=False))
