"""The number of prompt rows that a step may hold while other sequences decode."""

import pytest

from engines.paged.generation.prefill_pacing import Pacing


def steps(pacing: Pacing, decode: float, row: float) -> None:
    for _ in range(30):
        pacing.observe(4, 0, decode)
        pacing.observe(4, 50, decode + 50 * row)


@pytest.mark.parametrize(
    "decode, row, rows", [(0.020, 0.0005, 40), (0.050, 0.0005, 100), (0.020, 0.1, 16), (1.0, 1e-6, 512)]
)
def test_a_step_takes_no_more_than_twice_as_long(decode: float, row: float, rows: int) -> None:
    """Prompt rows take at most as long as the decoding rows of a step, within the minimum and the budget."""
    pacing = Pacing(2.0, 16, 512)
    steps(pacing, decode, row)
    assert pacing.prefill_rows() == pytest.approx(rows, rel=0.05)


def test_one_slow_step_does_not_count_for_much() -> None:
    """A single slow step barely changes the estimate."""
    pacing = Pacing(2.0, 16, 512)
    steps(pacing, 0.020, 0.0005)
    pacing.observe(4, 0, 60.0)
    assert pacing.prefill_rows() <= 50


def test_prompt_steps_measure_the_cost_of_a_row() -> None:
    """Steps of prompts alone measure the cost of a row."""
    pacing = Pacing(2.0, 16, 512)
    pacing.observe(0, 500, 0.25)
    pacing.observe(3, 0, 0.02)
    assert pacing.prefill_rows() == 40
    assert pacing.draft_cost(0.0) == pytest.approx(0.025)
    assert pacing.draft_cost(0.01) == pytest.approx(0.525)  # with a draft model that takes half of a step
