"""How many tokens to guess, by how often guesses of this sequence were right and what they cost."""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest step in the rate: it forgets in about five
_FIRST_RATE = 0.6
_LEAST_RATE, _LARGEST_RATE = 0.02, 0.98
# Where guessing loses, one guess is tried again after so many tokens: a text may become predictable.
_PAUSE_TOKENS = 32


class DraftLength:
    """Of one sequence. A step with k guesses that are right at rate r yields 1 + r + .. + r^k tokens, and takes 1 +
    k * cost of a step without: the k of the best ratio is taken, and none where that is 0."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rate = _FIRST_RATE
        self._pause = 0

    def num_guesses(self, cost: float) -> int:
        """`cost` of one guess, in steps without."""
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

    def learn(self, num_guessed: int, num_right: int) -> None:
        """A step has verified guesses: the first `num_right` were right."""
        seen = min(num_guessed, num_right + 1)  # those behind the first wrong one say nothing
        rate = num_right / seen
        self._rate += _WEIGHT * (min(max(rate, _LEAST_RATE), _LARGEST_RATE) - self._rate)


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
