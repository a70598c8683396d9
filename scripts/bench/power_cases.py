"""The simulated traffic, and the checks at each look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bench import power_formulas as formulas
from bench.power_formulas import Array, Contrast, Pair, Rate
from bench.power_quantiles import Bins, quantile_interval
from bench.power_ratio import bucket_ratio_p, sample_ratio_p
from bench.power_traffic import Requests, Traffic, binned, counted, units

ALPHA = 0.05
RAMP = ((0, 0.05), (150, 0.25), (300, 0.5), (450, 0.8))

# The arms of these do not differ; a drift affects both.
HARMLESS = {
    "requests": Traffic(),
    "few requests": Traffic(rate=5),
    "requests, 1 % share": Traffic(rate=50, ramp=((0, 0.01),)),
    "rare errors, wild latencies, 10 % share": Traffic(error_rate=0.001, deviation=1.2, ramp=((0, 0.1),)),
    "ramp, all grows threefold": Traffic(ramp=RAMP, drift=3.0),
    "latencies by prompt, 30 % share": Traffic(by_size=0.7, ramp=((0, 0.3),)),
    "sessions": Traffic(unit="session"),
    "few sessions": Traffic(unit="session", rate=5),
    "sessions, 10 % share, rare errors": Traffic(unit="session", ramp=((0, 0.1),), error_rate=0.001),
    "60 users, each all the time": Traffic(unit="user"),
    "300 users, 20 % share": Traffic(unit="user", users=300, ramp=((0, 0.2),), unit_deviation=0.8),
    "ramp of sessions, all grows threefold": Traffic(unit="session", ramp=RAMP, drift=3.0),
}


@dataclass(frozen=True, slots=True)
class Harm:
    """A difference between the arms, and a check that should find it."""

    traffic: Traffic
    check: str


HARMFUL = {
    "half of all fail, 1 % share": Harm(Traffic(harm=0.5, ramp=((0, 0.01),), rate=50), "guardrail: errors + 0.01"),
    "half of all fail, 5 % share": Harm(Traffic(harm=0.5, ramp=((0, 0.05),)), "guardrail: errors + 0.01"),
    "half of all fail, 5 % share, sessions": Harm(
        Traffic(harm=0.5, ramp=((0, 0.05),), unit="session"), "guardrail: errors + 0.01"
    ),
    "errors 1 % -> 5 %, 25 % share": Harm(Traffic(harm=0.04, ramp=((0, 0.25),)), "guardrail: errors + 0.01"),
    "errors 1 % -> 2 %": Harm(Traffic(harm=0.01), "errors differ"),
    "three times as slow, 5 % share": Harm(Traffic(slower=3.0, ramp=((0, 0.05),)), "guardrail: mean x 1.2"),
    "half as slow again, 25 % share": Harm(Traffic(slower=1.5, ramp=((0, 0.25),)), "guardrail: mean x 1.2"),
    "half as slow again, 25 % share: p95": Harm(Traffic(slower=1.5, ramp=((0, 0.25),)), "guardrail: p95 x 1.2"),
    "a tenth slower": Harm(Traffic(slower=1.1), "latencies differ"),
    "a tenth slower, sessions": Harm(Traffic(slower=1.1, unit="session"), "latencies differ"),
    "a tenth slower, by prompt": Harm(Traffic(slower=1.1, by_size=0.7), "latencies differ"),
    "a tenth slower, by prompt, adjusted": Harm(Traffic(slower=1.1, by_size=0.7), "latencies differ, adjusted"),
    "a tenth of the arm's sessions lost": Harm(Traffic(lost=0.1, unit="session", rate=50), "units mismatch"),
}


class Looks:
    """The counts of a batch of experiments by each second, computed on first use."""

    def __init__(self, of: Traffic, seen: Requests, num: int) -> None:
        self._of, self._seen, self._num = of, seen, num
        self.shares = [share for _, share in of.ramp]
        self._means: dict[tuple[float, bool], Contrast] = {}

    @cached_property
    def errors(self) -> list[Pair]:
        return counted(self._of, self._seen, self._seen.is_error, self._num)

    @cached_property
    def latencies(self) -> list[Pair]:
        return counted(self._of, self._seen, self._seen.seconds, self._num)

    @cached_property
    def rate(self) -> Rate:
        return formulas.rate(self.errors)

    def mean(self, ratio: float, adjust: bool) -> Contrast:
        """The arm's latency minus `ratio` times the control's."""
        if (ratio, adjust) not in self._means:
            self._means[ratio, adjust] = formulas.contrast(self.latencies, -ratio, adjust)
        return self._means[ratio, adjust]

    @cached_property
    def bins(self) -> tuple[Bins, Bins]:
        return binned(self._of, self._seen, self._num)

    @cached_property
    def units(self) -> list[tuple[Array, Array]]:
        return units(self._of, self._seen, self._num)


def _rate(increase: float, one_sided: bool) -> Callable[[Looks], Array]:
    return lambda looks: formulas.is_rate_beyond(looks.rate, ALPHA, one_sided, increase)


def _mean(ratio: float, one_sided: bool, adjust: bool = False) -> Callable[[Looks], Array]:
    return lambda looks: formulas.is_beyond(looks.mean(ratio, adjust), ALPHA, 0.0, one_sided)


def _quantile(probability: float, ratio: float) -> Callable[[Looks], Array]:
    def is_beyond(looks: Looks) -> Array:
        (_, most), (least, _) = (quantile_interval(one, probability, ALPHA / 2) for one in looks.bins)
        return least > ratio * most

    return is_beyond


def _units(looks: Looks) -> Array:
    return sample_ratio_p(looks.units, looks.shares) <= ALPHA


def _buckets(looks: Looks) -> Array:
    return bucket_ratio_p(looks.errors, looks.shares) <= ALPHA


CHECKS: Mapping[str, Callable[[Looks], Array]] = {
    "errors differ": _rate(0.0, False),
    "latencies differ": _mean(1.0, False),
    "latencies differ, adjusted": _mean(1.0, False, adjust=True),
    "guardrail: errors + 0": _rate(0.0, True),
    "guardrail: errors + 0.01": _rate(0.01, True),
    "guardrail: mean x 1": _mean(1.0, True),
    "guardrail: mean x 1.2": _mean(1.2, True),
    "guardrail: p50 x 1": _quantile(0.5, 1.0),
    "guardrail: p95 x 1": _quantile(0.95, 1.0),
    "guardrail: p95 x 1.2": _quantile(0.95, 1.2),
    "units mismatch": _units,
    "requests of units mismatch": _buckets,
}


def harmless_checks(of: Traffic) -> list[str]:
    """The checks that this traffic supports: quantiles and the ratio of buckets are simulated for one period only."""
    always = ["errors differ", "latencies differ", "guardrail: errors + 0", "guardrail: mean x 1", "units mismatch"]
    if len(of.ramp) > 1:
        return always
    further = ["requests of units mismatch"] if of.unit != "request" else []
    further += ["latencies differ, adjusted"] if of.by_size else []
    return [*always, "guardrail: p50 x 1", "guardrail: p95 x 1", *further]


def first_looks(of: Traffic, seen: Requests, num: int, checks: Sequence[str]) -> dict[str, Array]:
    """By check: the second at whose end each experiment was first found to be different; inf if it never was."""
    looks = Looks(of, seen, num)
    found = {}
    for check in checks:
        hits = CHECKS[check](looks)
        found[check] = np.where(hits.any(-1), hits.argmax(-1) + 1.0, np.inf)
    return found
