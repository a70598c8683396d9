"""Trials that find out whether an engine does more with a higher limit."""

from gateway.upstream.throughput_trial import ThroughputTrial


def play(rate_at, limit=8.0, windows=200):
    """The factors that are tried, and the trial; `rate_at` is the engine's throughput at a limit."""
    trial, factors = ThroughputTrial(), [1.0]
    for number in range(windows):
        limit = max(limit, trial.floor)
        rate = rate_at(limit * trial.factor)
        trial.window(int(rate), 1.0, limit, float(number), is_saturated=True)
        if trial.factor != factors[-1]:
            factors.append(trial.factor)
    return factors, trial


def test_where_throughput_stays_the_same_the_limit_rises_by_a_quarter_at_most_and_stays():
    factors, trial = play(lambda limit: 100.0)
    assert set(factors) == {1.0, 1.25}
    assert trial.floor == 0.0
    assert factors.count(1.25) < 8, "ever more seldom"


def test_where_throughput_rises_larger_steps_follow_at_once():
    factors, trial = play(lambda limit: min(limit, 64.0) * 10)
    assert factors[:3] == [1.0, 1.25, 1.5]
    assert 40 <= trial.floor <= 90


def test_a_floor_that_is_no_longer_worth_while_falls():
    capacity = [640.0]
    trial = ThroughputTrial()
    for number in range(2000):
        if number == 200:
            capacity[0] = 80.0
            assert trial.floor > 40
        limit = max(8.0, trial.floor)
        rate = min(limit * trial.factor * 10, capacity[0])
        trial.window(int(rate), 1.0, limit, float(number), is_saturated=True)
    assert trial.floor < 40


def test_an_engine_without_enough_requests_is_not_tried():
    trial = ThroughputTrial()
    for number in range(100):
        trial.window(100, 1.0, 8.0, float(number), is_saturated=False)
    assert trial.factor == 1.0


def test_a_trial_that_only_makes_replies_later_ends_early():
    """By Little's law a quarter more requests at a time that take a quarter longer are no more in a second."""
    lengths = {}
    for knows_latency in (False, True):
        trial, lengths[knows_latency] = ThroughputTrial(), 0
        for number in range(200):
            limit = 10 * trial.factor
            latency = limit / 100.0 if knows_latency else 0.0  # the engine does a hundred in a second
            trial.window(25, 0.25, 10.0, 0.25 * number, is_saturated=True, latency=latency)
            lengths[knows_latency] += trial.factor != 1.0
        assert trial.floor == 0.0
    assert 0 < lengths[True] <= lengths[False] // 2 + 1


def test_a_trial_of_an_engine_that_forms_batches_goes_on():
    """Its replies are later by less than the limit is higher."""
    trial = ThroughputTrial()
    for number in range(100):
        limit = max(8.0, trial.floor) * trial.factor
        latency = 0.02 + 0.001 * limit
        trial.window(
            int(limit / latency), 1.0, max(8.0, trial.floor), float(number), is_saturated=True, latency=latency
        )
        if trial.floor > 8.0:
            break
    assert trial.floor > 8.0
