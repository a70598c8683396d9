"""Where the runs of experiments stand, as Prometheus' metrics: what alerts are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import PrometheusFamily


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What of a run is in force at this gateway; `step` is 0 where no ramp is at one."""

    status: str
    step: int
    shares: Mapping[str, float]


def run_metrics(runs: Mapping[str, RunFacts]) -> Iterator[PrometheusFamily]:
    """By experiment; none where there are none."""
    if not runs:
        return
    status = prometheus_text.gauge(
        "pointsman_experiment_status", "1 for the status of its run.", labels=("experiment", "status")
    )
    step = prometheus_text.gauge("pointsman_experiment_step", "Of its ramp, 0: at none.", labels=("experiment",))
    share = prometheus_text.gauge("pointsman_arm_share", "Of the experiment's units.", labels=("experiment", "arm"))
    for name, run in runs.items():
        status.add((name, run.status), 1)
        step.add((name,), run.step)
        for arm, part in run.shares.items():
            share.add((name, arm), part)
    yield from (status, step, share)
