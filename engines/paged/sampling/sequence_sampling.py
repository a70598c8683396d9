"""What sampling knows of one sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from engines.paged.base.types import SamplingParams

Encode = Callable[[str], list[int]]


class TokenHistory(Protocol):
    """A sequence as far as the host knows it: `tokens` are its prompt's `num_prompt` and those of its answer."""

    tokens: list[int]
    num_prompt: int


class TokenMasker(Protocol):
    """A grammar's matcher."""

    def masks(self, drafts: Sequence[int] = ()) -> Any:
        """A numpy array [1 + drafts, words] int32 as in SamplingBatch.allowed: what may come now, and after each
        draft."""
        ...


class Bias(NamedTuple):
    """Added to logits: ids [b] int64, values [b] float32, on the host."""

    ids: Tensor
    values: Tensor


class SequenceSampling:
    """One sequence's parameters in the forms that rows of a batch are made of. Made on any thread, used on one."""

    def __init__(
        self,
        history: TokenHistory,
        params: SamplingParams,
        seed: int,
        matcher: TokenMasker | None,
        eos_ids: frozenset[int],
        encode: Encode,
    ) -> None:
        """`seed` in 0 .. 2^64 - 1. `encode` tells the tokens of a text, without special ones."""
        self.history = history
        self.params = params
        self.matcher = matcher
        self.seed = seed - (1 << 64) if seed >> 63 else seed
        is_beam = params.beam_width > 1  # what it goes on with is chosen by log probabilities, not drawn
        self.temperature = 0.0 if is_beam else params.temperature
        self.is_penalized = not is_beam and (
            params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        )
        self.is_filtered = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        self.seat = -1  # in the table of penalties, once it has one
        self.num_counted = 0  # tokens of its answer that are counted there
        words = [word for text in params.bad_words for word in _spellings(text, encode)]
        banned = {word[0]: -math.inf for word in words if len(word) == 1}
        self._bad_words = [word for word in words if len(word) > 1]
        self._bias = _bias({**params.logit_bias, **banned})
        # A grammar knows itself when its text may end.
        endings = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)
        self._endings = endings if params.min_tokens and matcher is None else frozenset()
        self.is_biased = self._bias is not None or bool(self._endings) or bool(self._bad_words)

    def __repr__(self) -> str:
        return f"<SequenceSampling: seed {self.seed}, {self.temperature} hot>"

    @property
    def needs_host(self) -> bool:
        """Whether a row can be made only once the host knows the token before it."""
        return self.matcher is not None or bool(self._bad_words)

    def banned(self, position: int, drafts: Sequence[int]) -> frozenset[int]:
        """Tokens that may not come at a position: ends of the text before min_tokens, and what would complete a bad
        word of several tokens. `drafts` stand before the position, and are not yet in the text."""
        start = self.history.num_prompt
        banned = self._endings if position - start < self.params.min_tokens else frozenset()
        if not self._bad_words:
            return banned
        longest = max(map(len, self._bad_words)) - 1
        known = self.history.tokens[start : position - len(drafts)]
        last = (*known[max(0, len(known) - longest) :], *drafts)
        completing = [word[-1] for word in self._bad_words if last[len(last) - len(word) + 1 :] == word[:-1]]
        return banned | frozenset(completing)

    def bias(self, banned: frozenset[int]) -> Bias | None:
        """What is added to the logits of a row."""
        if not banned:
            return self._bias
        ban = _bias(dict.fromkeys(sorted(banned), -math.inf))
        assert ban is not None
        return ban if self._bias is None else Bias(*(torch.cat(each) for each in zip(self._bias, ban, strict=True)))


def _spellings(text: str, encode: Encode) -> list[tuple[int, ...]]:
    """A word at the beginning of a text and after a space: the second only where it is as many other tokens."""
    word = text.lstrip()
    first, spaced = tuple(encode(word)), tuple(encode(" " + word))
    if not first:
        return []
    return [first, spaced] if len(spaced) == len(first) and spaced[0] != first[0] else [first]


def _bias(values: dict[int, float]) -> Bias | None:
    if not values:
        return None
    return Bias(torch.tensor(list(values), dtype=torch.int64), torch.tensor(list(values.values())))
