"""Beam search: of all continuations of a few answers, the likeliest few go on.

Pure: scores in, moves out. A beam is a sequence in a seat; a move names the beam to continue from, and the token.
Source: transformers' `generate(num_beams=..)`: 2 W candidates a step, hypotheses scored by sum of log probabilities /
length ** length_penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """Seat `beam` continues from the tokens of seat `parent`, with one more token."""

    beam: int
    parent: int
    token: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished answer without the token that ended it."""

    tokens: tuple[int, ...]
    logprob: float  # sum over its tokens
    score: float
    has_ended: bool  # by an end token; otherwise by its length


class BeamSearch:
    """The beams of one request."""

    def __init__(
        self, width: int, max_tokens: int, stop_ids: frozenset[int], *, length_penalty: float, early_stopping: bool
    ) -> None:
        """`early_stopping`: end once `width` answers are finished, rather than once no better one can come."""
        self.width = width
        self._max_tokens = max_tokens
        self._stop_ids = stop_ids
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._live: dict[int, tuple[tuple[int, ...], float]] = {
            0: ((), 0.0)
        }  # by seat: tokens, sum of log probabilities
        self._offers: dict[int, Sequence[tuple[int, float]]] = {}
        self._finished: list[Hypothesis] = []
        self.is_done = False

    @property
    def num_candidates(self) -> int:
        """Candidates of each beam in a step: enough that `width` go on where as many end."""
        return 2 * self.width

    def offer(self, beam: int, candidates: Sequence[tuple[int, float]]) -> list[Move] | None:
        """Take the candidates of a seat: (token, log probability), falling. Returns the moves of all seats once each
        has offered, None before, an empty list when the search is done."""
        self._offers[beam] = candidates
        if self._offers.keys() != self._live.keys():
            return None
        offers, self._offers = self._offers, {}
        ranked = sorted(
            (
                (self._live[beam][1] + logprob, beam, token)
                for beam, candidates in offers.items()
                for token, logprob in candidates
            ),
            key=lambda each: (-each[0], each[1], each[2]),
        )
        moves: list[Move] = []
        live: dict[int, tuple[tuple[int, ...], float]] = {}
        for rank, (logprob, parent, token) in enumerate(ranked[: self.num_candidates]):
            tokens = self._live[parent][0]
            if token in self._stop_ids:
                if rank < self.width:  # a lower candidate would not have gone on
                    self._finish(tokens, logprob, has_ended=True)
            elif len(live) < self.width:
                beam = len(live)
                live[beam] = (*tokens, token), logprob
                moves.append(Move(beam, parent, token))
        self._live = live
        if not live or self._cannot_improve():
            self.is_done = True
        elif len(live[0][0]) >= self._max_tokens:
            for tokens, logprob in live.values():
                self._finish(tokens, logprob, has_ended=False)
            self.is_done = True
        return [] if self.is_done else moves

    def best(self, count: int) -> list[Hypothesis]:
        """The likeliest answers so far, unfinished ones where there are too few."""
        unfinished = [self._scored(tokens, logprob, False) for tokens, logprob in self._live.values() if tokens]
        finished = {hypothesis.tokens for hypothesis in self._finished}
        more = [hypothesis for hypothesis in unfinished if hypothesis.tokens not in finished]
        rank = sorted(self._finished, key=lambda each: -each.score)
        return (rank + sorted(more, key=lambda each: -each.score))[:count]

    def _cannot_improve(self) -> bool:
        if len(self._finished) < self.width:
            return False
        if self._early_stopping:
            return True
        worst = min(hypothesis.score for hypothesis in self._finished)
        tokens, logprob = self._live[0]
        # With a penalty above 0, this bounds the score of an answer that grows without becoming less likely.
        length = self._max_tokens if self._length_penalty > 0 else len(tokens)
        return bool(worst >= logprob / length**self._length_penalty)

    def _finish(self, tokens: tuple[int, ...], logprob: float, *, has_ended: bool) -> None:
        self._finished.append(self._scored(tokens, logprob, has_ended))
        self._finished.sort(key=lambda each: -each.score)
        del self._finished[self.width :]

    def _scored(self, tokens: tuple[int, ...], logprob: float, has_ended: bool) -> Hypothesis:
        # The end token counts.
        length = len(tokens) + has_ended
        return Hypothesis(tokens, logprob, logprob / max(1, length) ** self._length_penalty, has_ended)
