"""A model's vocabulary in llguidance's form."""

from __future__ import annotations

from typing import Any

from engines.core.errors import EngineError, ErrorCode, unavailable
from engines.paged.text.tokenizer import Tokenizer

_MARK = b"\xff"  # begins llguidance's names of special tokens; no text has this byte
_NO_END = b"<|end|>"
# Precedes a text that begins in the middle of another: a tokenizer puts its sign for a space before this.
_BEFORE = "\x02"


def read_vocabulary(tokenizer: Tokenizer, eos_ids: frozenset[int]) -> Any:
    """An LLTokenizer. Where the model has no EOS, an unused id stands for one: its texts end where nothing may follow.

    Raises: EngineError where no grammar can be followed.
    """
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError as error:
        raise unavailable("grammars need llguidance, which is not installed: pip install llguidance") from error
    if not tokenizer.table.is_sequence:
        raise EngineError(
            ErrorCode.UNSUPPORTED,
            "this model's tokenizer does not write a text as the sequence of its tokens: no grammar can be followed",
        )
    ends = sorted(eos_ids) or [tokenizer.vocab_size]
    return LLTokenizer(TokenizerWrapper(Vocabulary(tokenizer, ends[0])), eos_token=ends)


class Vocabulary:
    """The bytes of each token, special ones by name, and the tokens of bytes: where a grammar allows only one text, the
    model writes it in its tokenizer's own tokens."""

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        self.bos_token_id = None
        self.eos_token_id = eos_id
        self._special = tokenizer.special_ids | {eos_id}
        self.special_token_ids = sorted(self._special)
        data = [tokenizer.table.bytes_of(token_id) for token_id in range(max(tokenizer.vocab_size, eos_id + 1))]
        self.tokens = [b"" if each.startswith(_MARK) else each for each in data]
        self.tokens[eos_id] = self.tokens[eos_id] or _NO_END
        self._tokenizer = tokenizer
        texts = [(each, i) for i, each in enumerate(self.tokens) if each and i not in self._special]
        self._ids = dict(reversed(texts))  # the lowest id of equal bytes
        self._longest = max((len(each) for each, _ in texts), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens whose bytes are exactly this text: the tokenizer's own where possible."""
        written = text if isinstance(text, bytes) else text.encode()
        try:
            read = written.decode()
        except UnicodeDecodeError:
            return self._greedy(written)
        for before in ("", _BEFORE):
            ids = self._encoded(before + read)[len(self._encoded(before)) :]
            if self._special.isdisjoint(ids) and b"".join([self.tokens[each] for each in ids]) == written:
                return ids
        return self._greedy(written)

    def _encoded(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False) if text else []

    def _greedy(self, text: bytes) -> list[int]:
        """The longest matching token again and again, as far as one matches."""
        ids, start = [], 0
        while start < len(text):
            parts = (text[start : start + length] for length in range(self._longest, 0, -1))
            part = next((each for each in parts if each in self._ids), None)
            if part is None:
                break
            ids.append(self._ids[part])
            start += len(part)
        return ids
