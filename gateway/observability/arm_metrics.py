"""What experiments count of their arms beside the series of all requests, as Prometheus' metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gateway.observability.arm_stats import ArmCounts
from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import PrometheusFamily

_ARM = ("experiment", "arm")


def arm_metrics(arms: Collection[ArmCounts]) -> Iterator[PrometheusFamily]:
    """The metrics of all arms; none where there are no experiments."""
    if not arms:
        return
    counted = prometheus_text.counter(
        "pointsman_arm_requests", "Inferences that experiments have counted.", labels=_ARM
    )
    failed = prometheus_text.counter("pointsman_arm_errors", "Those of them that failed.", labels=_ARM)
    crossed = prometheus_text.counter(
        "pointsman_arm_crossed", "Requests that another arm's engine answered, by failover: not counted.", labels=_ARM
    )
    forced = prometheus_text.counter("pointsman_arm_forced", "Requests whose arm was chosen: not counted.", labels=_ARM)
    energy = prometheus_text.counter("pointsman_arm_joules", "Energy, where engines tell it.", labels=_ARM)
    values = prometheus_text.counter("pointsman_arm_feedback_values", "Values of feedback.", labels=(*_ARM, "name"))
    labelled = prometheus_text.counter("pointsman_arm_feedback_labels", "Labels of feedback.", labels=(*_ARM, "name"))
    for arm in arms:
        labels = (arm.key.experiment, arm.key.arm)
        counted.add(labels, sum(arm.requests))
        failed.add(labels, sum(arm.errors))
        crossed.add(labels, arm.crossed)
        forced.add(labels, arm.forced)
        energy.add(labels, arm.joules)
        for name, told in arm.feedback.items():
            values.add((*labels, name), sum(told.count))
            labelled.add((*labels, name), sum(told.labels.values()))
    yield from (counted, failed, crossed, forced, energy, values, labelled)
