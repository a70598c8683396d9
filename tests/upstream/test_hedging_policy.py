"""When requests are hedged, and how many: pure parts, with time as an argument."""

import random

import pytest

from gateway.config.hedging_specs import HedgingDelay, HedgingSpec
from gateway.upstream.hedging_policy import HedgeBudget, HedgingPolicy, LatencyPercentile, hedging_of_engine


def percentile_of(latencies, share=0.95, seconds_each=0.01):
    it = LatencyPercentile(share, 0.0)
    for number, latency in enumerate(latencies):
        it.observe(latency, number * seconds_each)
    return it.value


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
def test_a_percentile_is_at_most_a_tenth_too_long(share):
    by_chance = random.Random(1)
    latencies = [by_chance.lognormvariate(-3, 0.7) for _ in range(4000)]
    exact = sorted(latencies)[int(share * len(latencies))]
    assert exact * 0.95 < percentile_of(latencies, share) < exact * 1.15


def test_it_is_unknown_until_there_are_enough_latencies():
    assert percentile_of([0.02] * 39) == 0.0
    assert percentile_of([0.02] * 40) > 0.0
    assert percentile_of([0.02] * 199, share=0.99) == 0.0


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-4, 119.0, 1e9])
def test_any_latency_has_a_bucket(seconds):
    assert percentile_of([seconds] * 100) > 0.0


def test_it_follows_an_engine_that_becomes_faster_or_slower_within_two_windows():
    it = LatencyPercentile(0.95, 0.0)
    for base, latency in ((0.0, 0.1), (100.0, 0.01), (200.0, 0.5)):
        for number in range(800):
            it.observe(latency, base + number * 0.1)
        assert latency <= it.value < 1.1 * latency


def test_an_overtaken_attempt_counts_with_its_time_so_far_and_hedging_does_not_shorten_the_delay():
    """One reply in 20 takes a second; those that a hedge overtakes count with little more than the delay."""
    by_chance = random.Random(2)
    it = LatencyPercentile(0.95, 0.0)
    values = []
    for number in range(40_000):
        latency = 1.0 if by_chance.random() < 0.04 else by_chance.uniform(0.01, 0.02)
        it.observe(min(latency, it.value * 1.05 + 0.01) if it.value else latency, number * 0.01)
        values.append(it.value)
    assert min(values[10_000:]) > 0.015


def test_the_budget_is_a_share_of_the_requests_however_fast_they_come():
    budget = HedgeBudget(0.05, 10)
    taken = 0
    for _ in range(1000):
        budget.add()
        taken += budget.take()
    assert taken == 51, "one token is there from the start"


def test_the_budget_saves_up_a_burst_and_no_more():
    budget = HedgeBudget(0.05, 10)
    for _ in range(100_000):
        budget.add()
    assert sum(budget.take() for _ in range(100)) == 10


def test_a_budget_of_nothing_allows_nothing():
    budget = HedgeBudget(0.0, 10)
    budget.add()
    assert not budget.take()


def test_the_delay_of_a_model_is_its_own_and_has_a_minimum():
    policy = HedgingPolicy(HedgingSpec(min_delay=0.02), 0.0)
    for name, latency in (("slow", 0.3), ("fast", 0.001)):
        latencies = policy.latencies((name, ""), 0.0)
        assert policy.delay(latencies) == 0.0, "unknown"
        for _ in range(50):
            latencies.observe(latency, 1.0)
    assert 0.3 <= policy.delay(policy.latencies(("slow", ""), 1.0)) < 0.33
    assert policy.delay(policy.latencies(("fast", ""), 1.0)) == 0.02


def test_a_fixed_delay_needs_no_latencies():
    policy = HedgingPolicy(HedgingSpec(delay=HedgingDelay(seconds=0.5)), 0.0)
    assert policy.delay(policy.latencies(None, 0.0)) == 0.5


def test_models_that_clients_invent_do_not_fill_the_memory():
    policy = HedgingPolicy(HedgingSpec(), 0.0)
    known = {id(policy.latencies((f"m{number}", ""), 0.0)) for number in range(1000)}
    assert len(known) == 257


def test_other_rules_keep_what_is_known_of_the_same_hedging():
    class Engine:
        hedging = HedgingPolicy(HedgingSpec(), 0.0)

    assert hedging_of_engine(HedgingSpec(), Engine, 1.0) is Engine.hedging
    assert hedging_of_engine(HedgingSpec(budget=0.1), Engine, 1.0) is not Engine.hedging
    assert hedging_of_engine(HedgingSpec(), None, 1.0) is not Engine.hedging
