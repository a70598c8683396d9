"""Figures computed from rounds with fixed times."""

import pytest

from engines.paged.bench.figures import cache_bytes_per_step, figures, percentile, weight_bytes_per_step
from engines.paged.bench.load import RequestTimings, Round, gaps
from tests.engines.paged.bench.test_memory_traffic import LLAMA

# Two requests; the second one starts and ends later than the first.
ROUND = Round(2, 10, (RequestTimings(0.0, (1.0, 2.0, 3.0, 4.0)), RequestTimings(0.0, (2.0, 3.0, 4.0, 5.0))))


def test_decoding_is_measured_while_all_decode() -> None:
    """The decode rate covers the time from the last first token to the first last token: here two seconds, in which
    each of two requests gets two tokens."""
    found = figures([ROUND], LLAMA, None, 64, 1e9)
    assert found.tokens_per_second == 2.0
    assert found.prompt_tokens_per_second == 10.0
    assert (found.first_token_p50, found.first_token_p95) == (2.0, 2.0)
    assert (found.token_p50, found.token_p95) == (1.0, 1.0)


def test_rounds_have_a_median_and_a_spread() -> None:
    """The rate is that of the median round, reported with the lowest and the highest rate."""
    rounds = [
        Round(1, 10, (RequestTimings(0.0, tuple(1.0 + step * number for number in range(5))),))
        for step in (0.5, 0.25, 0.1)
    ]
    found = figures(rounds, LLAMA, None, 64, 1e9)
    rates = (found.lowest_tokens_per_second, found.tokens_per_second, found.highest_tokens_per_second)
    assert rates == pytest.approx((2.0, 4.0, 10.0))


def test_the_share_is_what_steps_read_over_what_memory_can() -> None:
    """The memory share counts steps: one token per second for each of two sequences is one step per second."""
    step = weight_bytes_per_step(LLAMA, 2) + cache_bytes_per_step(LLAMA, 2, 12.0)
    found = figures([ROUND], LLAMA, None, 64, 4 * step)
    assert found.step_bytes == step
    assert found.bandwidth == step
    assert found.bandwidth_share == pytest.approx(0.25)


def test_answers_that_never_run_together_are_measured_as_a_whole() -> None:
    """If the first reply ends before the last one begins, the rate covers all the time in which any reply decodes."""
    apart = Round(2, 10, (RequestTimings(0.0, (1.0, 2.0)), RequestTimings(0.0, (4.0, 6.0))))
    found = figures([apart], LLAMA, None, 64, 1e9)
    assert found.tokens_per_second == pytest.approx(3 / 5)
    assert sorted(gaps(apart.requests)) == [1.0, 2.0]
    assert (found.token_p50, found.token_p95) == (2.0, 2.0)


def test_a_percentile_is_one_of_the_values() -> None:
    """A percentile of unsorted values is one of the values."""
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 50), percentile(values, 95), percentile([3.0], 95)) == (51.0, 96.0, 3.0)
