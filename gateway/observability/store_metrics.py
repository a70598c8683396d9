"""The use of Redis as Prometheus' metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.observability.redis_stats import StoreUse

_FAILURES = ("late", "failed", "refused", "skipped")


def store_metrics(use: StoreUse, restarts: int) -> Iterator[Metric]:
    """The metrics of all workers together; `restarts` are those of the embedded server."""
    yield CounterMetricFamily("pointsman_redis_calls", "Pipelines sent to Redis.", value=use.calls)
    yield CounterMetricFamily(
        "pointsman_redis_seconds", "Seconds that the answered ones took, summed.", value=use.seconds
    )
    failures = CounterMetricFamily(
        "pointsman_redis_failures",
        "Calls of Redis without use: late (nobody waited any more), failed (not reached), refused (a wrong type, no "
        "memory), skipped (not asked, since it had not answered).",
        labels=["reason"],
    )
    for reason in _FAILURES:
        failures.add_metric([reason], getattr(use, reason))
    yield failures
    yield CounterMetricFamily("pointsman_redis_dropped", "Commands that were never written.", value=use.dropped)
    yield GaugeMetricFamily("pointsman_redis_available", "Workers that find Redis answering.", value=use.available)
    yield CounterMetricFamily(
        "pointsman_redis_restarts", "Times that the embedded Redis was started anew.", value=restarts
    )
    yield CounterMetricFamily("pointsman_news_heard", "News that workers heard of others.", value=use.heard)
    yield CounterMetricFamily(
        "pointsman_news_gaps", "Times that a worker missed news, and read all anew.", value=use.gaps
    )
    yield GaugeMetricFamily("pointsman_news_live", "Workers that hear news.", value=use.live)
