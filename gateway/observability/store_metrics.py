"""The use of Redis as Prometheus' metrics."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.observability.redis_stats import StoreUse
from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import PrometheusFamily

_FAILURES = ("late", "failed", "refused", "skipped")


def store_metrics(use: StoreUse, restarts: int) -> Iterator[PrometheusFamily]:
    """The metrics of all workers together; `restarts` are those of the embedded server."""
    yield prometheus_text.counter("pointsman_redis_calls", "Pipelines sent to Redis.", value=use.calls)
    yield prometheus_text.counter(
        "pointsman_redis_seconds", "Seconds that the answered ones took, summed.", value=use.seconds
    )
    failures = prometheus_text.counter(
        "pointsman_redis_failures",
        "Calls of Redis without use: late (nobody waited any more), failed (not reached), refused (a wrong type, no "
        "memory), skipped (not asked, since it had not answered).",
        labels=["reason"],
    )
    for reason in _FAILURES:
        failures.add([reason], getattr(use, reason))
    yield failures
    yield prometheus_text.counter("pointsman_redis_dropped", "Commands that were never written.", value=use.dropped)
    yield prometheus_text.gauge("pointsman_redis_available", "Workers that find Redis answering.", value=use.available)
    yield prometheus_text.counter(
        "pointsman_redis_restarts", "Times that the embedded Redis was started anew.", value=restarts
    )
    yield prometheus_text.counter("pointsman_news_heard", "News that workers heard of others.", value=use.heard)
    yield prometheus_text.counter(
        "pointsman_news_gaps", "Times that a worker missed news, and read all anew.", value=use.gaps
    )
    yield prometheus_text.gauge("pointsman_news_live", "Workers that hear news.", value=use.live)
