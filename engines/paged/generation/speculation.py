"""Speculation for one sequence: how many tokens to draft, and n-gram drafts out of its own text."""

from __future__ import annotations

from typing import Any

from engines.paged.runner.draft_model import UNDRAFTED

_WEIGHT = 0.2  # of the newest step in the rate: about five steps are remembered
_FIRST_RATE = 0.6
_LEAST_RATE, _LARGEST_RATE = 0.02, 0.98
# Where drafting loses, one token is drafted again after this many: a text may become predictable.
_PAUSE_TOKENS = 32


class DraftLengthEstimator:
    """Chooses the number of drafted tokens by how often drafts were right and what they cost.

    A step with k drafts that are right at rate r yields 1 + r + .. + r^k tokens and takes 1 + k * cost steps. The k of
    the best ratio is chosen, 0 included.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rate = _FIRST_RATE
        self._pause = 0

    def num_drafts(self, cost: float) -> int:
        """`cost` of one draft, in steps without drafts."""
        if self._pause:
            self._pause -= 1
            return 0
        best, best_speed, expected = 0, 1.0, 1.0
        for count in range(1, self._most + 1):
            expected += self._rate**count
            speed = expected / (1 + count * cost)
            if speed > best_speed:
                best, best_speed = count, speed
        if not best:
            self._pause = _PAUSE_TOKENS
            return 1
        return best

    def observe(self, num_drafted: int, num_right: int) -> None:
        """Record a verified step: the first `num_right` drafts were right."""
        num_checked = min(num_drafted, num_right + 1)  # drafts behind the first wrong one carry no information
        rate = num_right / num_checked
        self._rate += _WEIGHT * (min(max(rate, _LEAST_RATE), _LARGEST_RATE) - self._rate)


class NgramIndex:
    """The place where each run of `least` .. `most` tokens of a sequence was last seen; grows with the sequence.

    A look-up costs `most - least + 1` steps at any length. Source: prompt lookup decoding (Saxena, 2023).
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._num_indexed = 1
        self._ends: dict[tuple[int, ...], int] = {}  # run -> where its continuation begins

    def draft(self, tokens: list[int], count: int) -> list[int]:
        """Up to `count` tokens that may follow `tokens`, which must extend those of the previous call."""
        self._index(tokens)
        size = len(tokens)
        for length in range(min(self._most, size), self._least - 1, -1):
            begin = self._ends.get(tuple(tokens[size - length :]))
            if begin is not None:
                drafted = tokens[begin : begin + count]
                while len(drafted) < count:  # the text repeats itself, and may go on to
                    drafted += drafted[: count - len(drafted)]
                return drafted
        return []

    def _index(self, tokens: list[int]) -> None:
        for end in range(self._num_indexed, len(tokens)):
            for length in range(self._least, min(self._most, end) + 1):
                self._ends[tuple(tokens[end - length : end])] = end
        self._num_indexed = max(1, len(tokens))


class Drafter(DraftLengthEstimator):
    """Drafts of one sequence by a draft model, which fills them in when the step is launched."""

    def draft(self, tokens: list[int], cost: float) -> list[int]:
        """Tokens that may follow `tokens`, for the next step to verify; `cost` as in `num_drafts`."""
        return [UNDRAFTED] * self.num_drafts(cost)


class NgramDrafter(Drafter):
    """Drafts from the sequence's own text, cut where its grammar forbids them."""

    def __init__(self, most: int, ngrams: NgramIndex, matcher: Any | None) -> None:
        super().__init__(most)
        self._ngrams = ngrams
        self._matcher = matcher

    def draft(self, tokens: list[int], cost: float) -> list[int]:
        drafted = self._ngrams.draft(tokens, self.num_drafts(cost))
        if self._matcher is not None:
            del drafted[self._matcher.num_valid(drafted) :]
        return drafted
