"""Beam search as a pure state machine: scores in, moves out."""

import itertools
import math
import random

import pytest

from engines.paged.generation.beams import BeamSearch, Move

VOCABULARY = 5
STOP = 0


def scores(prefix: tuple[int, ...], seed: int) -> list[tuple[int, float]]:
    """A synthetic model: (token, log probability) in descending order."""
    dice = random.Random(f"{seed}.{prefix}")
    weights = [dice.random() ** 3 + 0.01 for _ in range(VOCABULARY)]
    total = sum(weights)
    return sorted(((t, math.log(w / total)) for t, w in enumerate(weights)), key=lambda each: -each[1])


def search(width: int, length: int, seed: int, **options: object) -> BeamSearch:
    settings: dict[str, object] = {"length_penalty": 1.0, "early_stopping": False, **options}
    beams = BeamSearch(width, length, frozenset({STOP}), **settings)  # type: ignore[arg-type]
    seats: dict[int, tuple[int, ...]] = {0: ()}
    while not beams.is_done:
        moves = None
        for seat in sorted(seats, reverse=True):
            moves = beams.offer(seat, scores(seats[seat], seed)[: beams.num_candidates])
        assert moves is not None
        seats = {move.beam: (*seats[move.parent], move.token) for move in moves}
    return beams


def best_of_all(length: int, seed: int, penalty: float) -> tuple[tuple[int, ...], float]:
    """The best reply by exhaustive search."""
    found: list[tuple[float, tuple[int, ...]]] = []
    for size in range(length + 1):
        for answer in itertools.product(range(1, VOCABULARY), repeat=size):
            total = sum(dict(scores(answer[:i], seed))[token] for i, token in enumerate(answer))
            if size < length:
                total += dict(scores(answer, seed))[STOP]
                found.append((total / (size + 1) ** penalty, answer))
            else:
                found.append((total / max(1, size) ** penalty, answer))
    score, answer = max(found)
    return answer, score


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("penalty", [0.5, 1.0])
def test_as_many_beams_as_there_are_answers_find_the_best(seed: int, penalty: float) -> None:
    """With a beam for every prefix, the search finds the result of an exhaustive search."""
    answer, score = best_of_all(4, seed, penalty)
    best = search(300, 4, seed, length_penalty=penalty).best(1)[0]
    assert best.tokens == answer and best.score == pytest.approx(score)


def test_one_beam_goes_on_alone_and_all_wait_for_the_last() -> None:
    """The first step has one beam; later steps move once every beam has offered its candidates."""
    beams = BeamSearch(2, 9, frozenset({STOP}), length_penalty=1.0, early_stopping=False)
    assert beams.offer(0, [(3, -0.1), (4, -0.5), (2, -0.9), (1, -3.0)]) == [Move(0, 0, 3), Move(1, 0, 4)]
    assert beams.offer(1, [(1, -0.05), (2, -0.1), (3, -9.0), (4, -9.0)]) is None
    assert beams.offer(0, [(1, -2.0), (2, -3.0), (3, -9.0), (4, -9.0)]) == [Move(0, 1, 1), Move(1, 1, 2)]


def test_it_can_end_with_the_first_answers() -> None:
    """With early_stopping the search ends once it has as many hypotheses as beams."""
    beams = BeamSearch(1, 9, frozenset({STOP}), length_penalty=1.0, early_stopping=True)
    assert beams.offer(0, [(STOP, -0.1), (4, -0.5)]) == []
    assert beams.is_done and beams.best(1)[0].tokens == () and beams.best(1)[0].has_ended


@pytest.mark.parametrize("seed", range(5))
def test_hypotheses_are_ranked_and_of_the_requested_length(seed: int) -> None:
    """No hypothesis exceeds the length limit, and the best comes first."""
    best = search(3, 6, seed).best(3)
    assert all(len(each.tokens) <= 6 for each in best)
    assert [each.score for each in best] == sorted((each.score for each in best), reverse=True)
