"""The periods in which two arms can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.observability.arm_stats import ArmCounts
from gateway.statistics.metrics import series_of
from gateway.statistics.values import Stratum
from gateway.statistics.variance import Pair


def shared(strata: Sequence[Stratum], control: str, arm: str) -> list[tuple[ArmCounts, ArmCounts]]:
    """What both arms counted in the periods in which both had a share."""
    return [
        (stratum.arms[control], stratum.arms[arm])
        for stratum in strata
        if control in stratum.arms and arm in stratum.arms and _has_share(stratum, control) and _has_share(stratum, arm)
    ]


def of_arm(strata: Sequence[Stratum], arm: str) -> list[ArmCounts]:
    """What one arm counted, in all periods."""
    return [stratum.arms[arm] for stratum in strata if arm in stratum.arms]


def pairs_of(metric: str, counted: Sequence[tuple[ArmCounts, ArmCounts]]) -> list[Pair]:
    """Both arms' series of a metric, where both have something."""
    pairs = [(series_of(metric, control), series_of(metric, arm)) for control, arm in counted]
    return [pair for pair in pairs if all(sum(series.counts) for series in pair)]


def _has_share(stratum: Stratum, arm: str) -> bool:
    return stratum.shares.get(arm, 0.0) > 0
