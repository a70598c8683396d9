"""Guesses by what was said before: where the last words stood once already, what followed them then may follow
again."""

from __future__ import annotations


class NgramIndex:
    """Where each run of `least` .. `most` tokens of one sequence was seen last; grows with the sequence.

    A look-up costs `most - least + 1` steps whatever the length. Source: prompt lookup decoding (Saxena, 2023).
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._num_learnt = 1  # tokens
        self._ends: dict[tuple[int, ...], int] = {}  # run -> where what followed it begins

    def guess(self, tokens: list[int], count: int) -> list[int]:
        """Up to `count` tokens that may follow `tokens`, which must go on from those of the call before."""
        self._learn(tokens)
        size = len(tokens)
        for length in range(min(self._most, size), self._least - 1, -1):
            begin = self._ends.get(tuple(tokens[size - length :]))
            if begin is not None:
                guessed = tokens[begin : begin + count]
                while len(guessed) < count:  # it repeats itself: so may what follows
                    guessed += guessed[: count - len(guessed)]
                return guessed
        return []

    def _learn(self, tokens: list[int]) -> None:
        """Note every run that something follows."""
        for end in range(self._num_learnt, len(tokens)):
            for length in range(self._least, min(self._most, end) + 1):
                self._ends[tuple(tokens[end - length : end])] = end
        self._num_learnt = max(1, len(tokens))
