"""What experiments count of their arms beside the series of all requests, as Prometheus' metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.observability.arm_stats import ArmCounts

_ARM = ("experiment", "arm")


def arm_metrics(arms: Collection[ArmCounts]) -> Iterator[Metric]:
    """The metrics of all arms; none where there are no experiments."""
    if not arms:
        return
    counted = CounterMetricFamily("pointsman_arm_requests", "Inferences that experiments have counted.", labels=_ARM)
    failed = CounterMetricFamily("pointsman_arm_errors", "Those of them that failed.", labels=_ARM)
    crossed = CounterMetricFamily(
        "pointsman_arm_crossed", "Requests that another arm's engine answered, by failover: not counted.", labels=_ARM
    )
    forced = CounterMetricFamily("pointsman_arm_forced", "Requests whose arm was chosen: not counted.", labels=_ARM)
    energy = CounterMetricFamily("pointsman_arm_joules", "Energy, where engines tell it.", labels=_ARM)
    values = CounterMetricFamily("pointsman_arm_feedback_values", "Values of feedback.", labels=(*_ARM, "name"))
    labelled = CounterMetricFamily("pointsman_arm_feedback_labels", "Labels of feedback.", labels=(*_ARM, "name"))
    for arm in arms:
        labels = (arm.key.experiment, arm.key.arm)
        counted.add_metric(labels, sum(arm.requests))
        failed.add_metric(labels, sum(arm.errors))
        crossed.add_metric(labels, arm.crossed)
        forced.add_metric(labels, arm.forced)
        energy.add_metric(labels, arm.joules)
        for name, told in arm.feedback.items():
            values.add_metric((*labels, name), sum(told.count))
            labelled.add_metric((*labels, name), sum(told.labels.values()))
    yield from (counted, failed, crossed, forced, energy, values, labelled)
