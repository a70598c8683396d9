"""How much traffic is needed: what is promised is kept in simulation."""

from __future__ import annotations

import numpy as np
import pytest
from bench.power_cases import first_looks
from bench.power_traffic import Traffic, requests

from gateway.statistics.power import needed, needed_for_rate


def test_needed_traffic_grows_with_doubt() -> None:
    """Half the difference: four times the traffic and a little; a smaller share, alpha or chance to miss: more."""
    whole = needed(0.1, 1.0)
    assert needed(0.05, 1.0) == pytest.approx(4 * whole, rel=0.15)
    assert needed(0.1, 1.0, share=0.1) == pytest.approx(whole / 0.36, rel=0.01)
    assert needed(0.1, 1.0, alpha=0.01) > whole
    assert needed(0.1, 1.0, power=0.95) > whole
    assert needed(0.1, 1.0, design_effect=3.0) == pytest.approx(3 * whole, rel=0.1)
    assert needed(1e9, 1.0) == 100  # latencies' means need 50 of each arm, however far they are apart


def test_what_is_needed_is_enough() -> None:
    """Errors of 2 % and 5 %, latencies a tenth apart: found in four of five experiments of so many requests."""
    deviation = 0.1 * np.exp(0.125) * np.sqrt(np.expm1(0.25))
    mean = 0.1 * np.exp(0.125)
    cases = [
        (needed_for_rate(0.02, 0.05), Traffic(error_rate=0.02, harm=0.03), "errors differ"),
        (needed(0.1 * mean, 1.05 * deviation), Traffic(slower=1.1), "latencies differ"),
    ]
    for num, of, check in cases:
        dice = np.random.default_rng(num)
        seconds = [first_looks(of, requests(of, 25, dice), 25, [check])[check] for _ in range(4)]
        found = np.concatenate(seconds) <= num / of.rate
        assert found.mean() >= 0.75, f"{num} requests"
        assert num < 10_000
