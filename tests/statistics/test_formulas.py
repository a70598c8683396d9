"""The simulations' array formulas agree with the package, so that simulated results on peeking hold for the package."""

from __future__ import annotations

from math import isfinite

import numpy as np
import pytest
from bench import power_formulas as arrays
from bench.power_quantiles import quantile_interval
from bench.power_ratio import bucket_ratio_p, sample_ratio_p
from bench.power_traffic import Requests, Traffic, binned, counted, requests, units

from gateway.config.experiment_specs import GuardrailSpec
from gateway.statistics.comparison import breaches, compare
from gateway.statistics.sample_ratio import sample_ratio
from gateway.statistics.values import Stratum
from tests.statistics.making import ARM, CONTROL, arm_counts

RAMP = ((0, 0.05), (20, 0.3), (40, 0.6))
TRAFFICS = {
    "requests": Traffic(seconds=60, error_rate=0.05, harm=0.05, by_size=0.5),
    "sessions": Traffic(seconds=60, unit="session", error_rate=0.1, slower=1.3, rate=60, by_size=0.3),
    "ramp": Traffic(seconds=60, ramp=RAMP, drift=2.0, harm=0.05, error_rate=0.1, by_size=0.5, rate=60),
    "ramp of sessions": Traffic(seconds=60, ramp=RAMP, unit="session", rate=60, harm=0.1, slower=1.5, by_size=0.3),
    "little": Traffic(seconds=60, rate=2, harm=0.3, slower=2.0, by_size=0.3),
    "short sessions": Traffic(seconds=60, rate=5, unit="session", harm=0.3, by_size=0.3),
}
ALPHAS = (0.3, 0.05, 0.001)
LOOKS = (0, 3, 9, 18, 22, 30, 41, 50, 59)


def strata_at(of: Traffic, seen: Requests, second: int) -> list[Stratum]:
    """The counts of production at the end of a second."""
    strata = []
    for period, (_, share) in enumerate(of.ramp):
        arms = {}
        for name, is_arm in ((CONTROL, False), (ARM, True)):
            here = (seen.period == period) & (seen.is_arm == is_arm) & (seen.second <= second)
            first = here & seen.is_first
            arms[name] = arm_counts(
                name,
                seen.bucket[here],
                seen.is_error[here],
                seen.seconds[here],
                seen.size[here],
                units=seen.bucket[first],
            )
        strata.append(Stratum(arms, {CONTROL: 1 - share, ARM: share}))
    return strata


@pytest.mark.parametrize("name", TRAFFICS)
def test_both_say_the_same(name: str) -> None:
    """At several times of several kinds of traffic, for three alphas, verdicts and p-values agree."""
    of = TRAFFICS[name]
    seen = requests(of, 1, np.random.default_rng(7))
    errors, latencies = arrays.rate(counted(of, seen, seen.is_error, 1)), counted(of, seen, seen.seconds, 1)
    shares = [share for _, share in of.ramp]
    by_units = sample_ratio_p(units(of, seen, 1), shares)[0]
    for second in LOOKS:
        strata = strata_at(of, seen, second)
        assert sample_ratio(strata, 0.05).p_value == pytest.approx(by_units[second], rel=1e-6)
        for alpha in ALPHAS:
            rate = compare("error_rate", strata, CONTROL, ARM, alpha)
            assert rate.is_different == arrays.is_rate_beyond(errors, alpha)[0, second]
            mean = compare("latency", strata, CONTROL, ARM, alpha)
            seconds = arrays.contrast(latencies, adjust=True)
            assert mean.is_different == arrays.is_beyond(seconds, alpha)[0, second]
            if isfinite(mean.difference.low):
                assert mean.difference.estimate == pytest.approx(seconds.estimate[0, second])
            failing = breaches(GuardrailSpec("error_rate", max_increase=0.02), strata, CONTROL, ARM, alpha)
            assert failing.is_breached == arrays.is_rate_beyond(errors, alpha, True, 0.02)[0, second]
            slow = breaches(GuardrailSpec("latency", max_ratio=1.1), strata, CONTROL, ARM, alpha)
            against = arrays.contrast(latencies, -1.1, adjust=True)
            assert slow.is_breached == arrays.is_beyond(against, alpha, 0.0, True)[0, second]


@pytest.mark.parametrize("name", ["requests", "sessions", "little", "short sessions"])
@pytest.mark.parametrize("metric, probability", [("latency_p50", 0.5), ("latency_p99", 0.99)])
def test_both_have_the_same_quantiles(name: str, metric: str, probability: float) -> None:
    of = TRAFFICS[name]
    seen = requests(of, 1, np.random.default_rng(8))
    ends = [quantile_interval(of_arm, probability, 0.05) for of_arm in binned(of, seen, 1)]
    for second in LOOKS:
        report = compare(metric, strata_at(of, seen, second), CONTROL, ARM, 0.05)
        if not report.n_control or not report.n_arm:
            continue
        for interval, (low, high) in zip((report.control, report.arm), ends, strict=True):
            assert (interval.low, interval.high) == pytest.approx((low[0, second], high[0, second]))


def test_both_compare_buckets_where_units_are_unknown() -> None:
    of = TRAFFICS["sessions"]
    seen = requests(of, 1, np.random.default_rng(9))
    p_values = bucket_ratio_p(counted(of, seen, seen.is_error, 1), [0.5])[0]
    for second in LOOKS:
        strata = strata_at(of, seen, second)
        for stratum in strata:
            for counts in stratum.arms.values():
                counts.units = [0] * len(counts.units)
        assert sample_ratio(strata, 0.05).p_value == pytest.approx(p_values[second], rel=1e-6)
