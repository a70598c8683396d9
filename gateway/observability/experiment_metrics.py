"""Where the runs of experiments stand, as Prometheus' metrics: what alerts are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What of a run is in force at this gateway; `step` is 0 where no ramp is at one."""

    status: str
    step: int
    shares: Mapping[str, float]


def run_metrics(runs: Mapping[str, RunFacts]) -> Iterator[Metric]:
    """By experiment; none where there are none."""
    if not runs:
        return
    status = GaugeMetricFamily(
        "pointsman_experiment_status", "1 for the status of its run.", labels=("experiment", "status")
    )
    step = GaugeMetricFamily("pointsman_experiment_step", "Of its ramp, 0: at none.", labels=("experiment",))
    share = GaugeMetricFamily("pointsman_arm_share", "Of the experiment's units.", labels=("experiment", "arm"))
    for name, run in runs.items():
        status.add_metric((name, run.status), 1)
        step.add_metric((name,), run.step)
        for arm, part in run.shares.items():
            share.add_metric((name, arm), part)
    yield from (status, step, share)
