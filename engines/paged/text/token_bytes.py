"""What each token is in bytes, as far as a tokenizer's decoder lets that be told of one token alone."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

import tokenizers

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # a sentencepiece's space


class TokenKind(Enum):
    BYTES = "bytes"  # each token is some bytes, and a text is their sequence: GPT-2's ByteLevel
    FALLBACK = "fallback"  # tokens are text, and some are a byte each: sentencepiece's <0x0A>
    TEXT = "text"  # anything else


class Pieces:
    """The tokens of one tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        decoders = _decoders(backend)
        names = [decoder["type"] for decoder in decoders]
        self.kind = (
            TokenKind.BYTES
            if names == ["ByteLevel"]
            else TokenKind.FALLBACK
            if "ByteFallback" in names
            else TokenKind.TEXT
        )
        self._has_spaces = "Metaspace" in names or any(
            decoder["type"] == "Replace" and decoder["pattern"] == {"String": _SPACE} for decoder in decoders
        )
        self._known: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"<Pieces: {self.kind.value}>"

    @property
    def is_sequence(self) -> bool:
        """Whether a text's bytes are those of its tokens, one after the other (but for a space at its beginning)."""
        return self.kind is not TokenKind.TEXT or self._has_spaces

    def is_byte(self, token_id: int) -> bool:
        """Whether a fallback's token stands for one byte, which may be a part of a character."""
        token = self._backend.id_to_token(token_id)
        return token is not None and _BYTE.fullmatch(token) is not None

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes in the middle of a text; none where there is no such token."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._bytes_of(token_id)
        return known

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
    """What the decoder is made of, by its own JSON."""
    if backend.decoder is None:
        return []
    told = json.loads(backend.decoder.__getstate__())
    return list(told["decoders"]) if told["type"] == "Sequence" else [told]


def _from_byte_level(token: str) -> bytes:
    """A token of printable letters that stand for bytes; one with any other letter, as some added ones, is its own
    text."""
    try:
        return bytes([_BYTE_OF[letter] for letter in token])
    except KeyError:
        return token.encode()


def _byte_letters() -> dict[str, int]:
    """GPT-2's letter for each byte: the byte's own where that can be printed, else one of those from 256 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_letters()
