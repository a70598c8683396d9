"""The sampling state of one sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engines.paged.base.types import SamplingParams
from engines.paged.sampling.grammar import Matcher

Encode = Callable[[str], list[int]]


class TokenHistory(Protocol):
    """The tokens of a sequence on the host: `num_prompt` of the prompt, then those of the answer."""

    tokens: list[int]
    num_prompt: int


class Bias(NamedTuple):
    """Added to logits: ids [b] int64, values [b] float32, on the host."""

    ids: Tensor
    values: Tensor


class SequenceSampling:
    """One sequence's parameters, in the form of a batch's rows. Created on any thread, used on one."""

    def __init__(
        self,
        history: TokenHistory,
        params: SamplingParams,
        seed: int,
        matcher: Matcher | None,
        eos_ids: frozenset[int],
        encode: Encode,
    ) -> None:
        """`seed` in 0 .. 2^64 - 1. `encode` returns the tokens of a text without special ones."""
        self.history = history
        self.params = params
        self.matcher = matcher
        self.seed = seed - (1 << 64) if seed >> 63 else seed
        is_beam = params.beam_width > 1  # beams continue by log probabilities, without sampling
        self.temperature = 0.0 if is_beam else params.temperature
        self.is_penalized = not is_beam and (
            params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        )
        self.is_filtered = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        self.seat = -1  # in the penalty table, once it has one
        self.num_counted = 0  # tokens of its answer counted there
        words = [word for text in params.bad_words for word in _spellings(text, encode)]
        banned = {word[0]: -math.inf for word in words if len(word) == 1}
        self._bad_words = [word for word in words if len(word) > 1]
        self._bias = _bias({**params.logit_bias, **banned})
        # A grammar determines itself where its text may end.
        self._endings = params.end_ids(eos_ids) if params.min_tokens and matcher is None else frozenset()
        self.is_biased = self._bias is not None or bool(self._endings) or bool(self._bad_words)

    @property
    def needs_host(self) -> bool:
        """Whether a row can be built only when the host knows the token before it."""
        return self.matcher is not None or bool(self._bad_words)

    def banned(self, position: int, drafts: Sequence[int]) -> frozenset[int]:
        """Tokens that may not come at a position: ends of the text before min_tokens, and those that would complete a
        bad word of several tokens. `drafts` precede the position and are not in the text yet."""
        start = self.history.num_prompt
        banned = self._endings if position - start < self.params.min_tokens else frozenset()
        if not self._bad_words:
            return banned
        longest = max(map(len, self._bad_words)) - 1
        output = self.history.tokens[start : position - len(drafts)]
        last = (*output[max(0, len(output) - longest) :], *drafts)
        completing = [word[-1] for word in self._bad_words if last[len(last) - len(word) + 1 :] == word[:-1]]
        return banned | frozenset(completing)

    def bias(self, banned: frozenset[int]) -> Bias | None:
        """The bias of a row's logits."""
        if not banned:
            return self._bias
        ban = _bias(dict.fromkeys(sorted(banned), -math.inf))
        assert ban is not None
        return ban if self._bias is None else Bias(*(torch.cat(each) for each in zip(self._bias, ban, strict=True)))


def _spellings(text: str, encode: Encode) -> list[tuple[int, ...]]:
    """The tokens of a word at the beginning of a text and, where they are as many, after a space."""
    word = text.lstrip()
    first, spaced = tuple(encode(word)), tuple(encode(" " + word))
    if not first:
        return []
    return [first, spaced] if len(spaced) == len(first) and spaced[0] != first[0] else [first]


def _bias(values: dict[int, float]) -> Bias | None:
    if not values:
        return None
    return Bias(torch.tensor(list(values), dtype=torch.int64), torch.tensor(list(values.values())))
