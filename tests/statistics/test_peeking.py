"""Looking each second for ten minutes makes no more false alarms than alpha: simulations of 744 experiments.

Seeds are fixed. A check passes unless a coin of chance alpha would give as many alarms less than once in a thousand
times. `scripts/bench/experiment_power.py` simulates more experiments.
"""

from __future__ import annotations

from collections import Counter
from math import comb

import numpy as np
import pytest
from bench import power_formulas as formulas
from bench.power_cases import ALPHA, CHECKS, HARMFUL, HARMLESS, first_looks, harmless_checks
from bench.power_traffic import Traffic, counted, requests

BATCH = 25


def most_by_chance(num: int, chance: float = ALPHA, surprise: float = 0.001) -> int:
    """The most hits of `num` trials that are no surprise at this chance."""
    left = 1.0
    for hits in range(num + 1):
        left -= comb(num, hits) * chance**hits * (1 - chance) ** (num - hits)
        if left < surprise:
            return hits
    return num


def found(of: Traffic, checks: list[str], num: int, seed: int) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(seed)
    batch = min(num, BATCH)
    batches = [first_looks(of, requests(of, batch, dice), batch, checks) for _ in range(num // batch)]
    return {check: np.concatenate([each[check] for each in batches]) for check in checks}


@pytest.mark.parametrize("name", HARMLESS)
def test_peeking_makes_no_false_alarms(name: str) -> None:
    """600 looks at two equal arms: requests and sessions, rare errors, wild latencies, ramps, rising base rates."""
    of, num = HARMLESS[name], 12
    for check, seconds in found(of, harmless_checks(of), num, seed=11).items():
        assert np.isfinite(seconds).sum() <= most_by_chance(num), check


def test_many_experiments_together_make_no_more() -> None:
    """600 more experiments give a narrower bound on the two checks that decide."""
    alarms: Counter[str] = Counter()
    for number, unit in enumerate(("request", "session")):
        of = Traffic(unit=unit, rate=15, deviation=0.8, ramp=((0, 0.3),))
        for check, seconds in found(of, ["errors differ", "latencies differ"], 300, seed=20 + number).items():
            alarms[check] += int(np.isfinite(seconds).sum())
    assert max(alarms.values()) <= most_by_chance(600)


@pytest.mark.parametrize(
    "name, chance, seconds",
    [
        ("half of all fail, 5 % share", 0.95, 20),
        ("half of all fail, 5 % share, sessions", 0.9, 120),
        ("half as slow again, 25 % share", 1.0, 60),
        ("half as slow again, 25 % share: p95", 0.8, 400),
        ("a tenth slower, by prompt, adjusted", 0.8, 300),
    ],
)
def test_harm_is_found(name: str, chance: float, seconds: float) -> None:
    """Harm is found within this many seconds, at 20 requests a second, in at least this share of the experiments."""
    harm = HARMFUL[name]
    looks = found(harm.traffic, [harm.check], 50, seed=5)[harm.check]
    assert (looks <= seconds).mean() >= chance


def test_the_simulation_sees_who_is_wrong() -> None:
    """A textbook 95 % interval, looked at each second, alarms in a fifth of all experiments or more; the sequences do
    not."""
    dice = np.random.default_rng(3)
    of = Traffic()
    pairs = counted(of, (seen := requests(of, 50, dice)), seen.seconds, 50)
    contrast = formulas.contrast(pairs)
    textbook = contrast.is_known & (np.abs(contrast.estimate) > 1.96 * contrast.error)
    assert textbook.any(-1).mean() > 0.2


def test_requests_of_a_session_are_not_independent() -> None:
    """If each request gets a bucket of its own, as if it were a unit, a quarter of the experiments alarm or more."""
    dice = np.random.default_rng(4)
    of = Traffic(unit="session")
    seen = requests(of, 50, dice)
    alarms = {}
    for name, buckets in (("of units", seen.bucket), ("of requests", dice.integers(0, 64, len(seen)))):
        seen.bucket[:] = buckets
        hits = formulas.is_beyond(formulas.contrast(counted(of, seen, seen.seconds, 50)), ALPHA)
        alarms[name] = hits.any(-1).mean()
    assert alarms["of units"] <= most_by_chance(50) / 50
    assert alarms["of requests"] > 0.25


def test_adjusting_for_prompts_is_not_wrong_and_narrows() -> None:
    """For latencies that grow with prompts: no more false alarms, and at most seven tenths of the error."""
    of = Traffic(by_size=0.7, seconds=300)
    assert np.isfinite(found(of, ["latencies differ, adjusted"], 100, 6)["latencies differ, adjusted"]).sum() <= (
        most_by_chance(100)
    )
    seen = requests(of, 50, np.random.default_rng(7))
    pairs = counted(of, seen, seen.seconds, 50)
    plain, adjusted = formulas.contrast(pairs), formulas.contrast(pairs, adjust=True)
    last = -1
    assert np.median(adjusted.error[:, last] / plain.error[:, last]) < 0.7
    # Over many experiments both are unbiased: the mean estimate is within three of its standard errors of 0.
    for each in (plain, adjusted):
        estimates = each.estimate[:, last]
        assert abs(estimates.mean()) < 3 * estimates.std() / np.sqrt(len(estimates))


def test_every_check_is_used() -> None:
    """The simulations cover every check."""
    used = {check for of in HARMLESS.values() for check in harmless_checks(of)} | {h.check for h in HARMFUL.values()}
    assert used == CHECKS.keys()
