"""Counters of the hot path, and their sum over several workers."""

import pytest

from gateway.observability.metrics import GONE, LATENCY_BOUNDS, Metrics, SeriesKey
from gateway.observability.stats import add_up
from gateway.protocol.prometheus_text import Histogram

KEY = SeriesKey("all", "candidate", "triton", "http://e0:8000")


@pytest.mark.parametrize(
    "seconds, bound",
    [
        (0.0, 0.0001),
        (0.0001, 0.0001),  # a bound belongs to its own bucket, as with `le`
        (0.00011, 0.00025),
        (0.02, 0.025),
        (0.9, 1.0),
        (120.0, 120.0),
        (121.0, None),
    ],
)
def test_buckets(seconds: float, bound: float | None) -> None:
    """A time is counted in the first bucket whose bound it does not exceed, or else in the last."""
    histogram = Histogram(LATENCY_BOUNDS)
    histogram.observe(seconds)
    index = len(LATENCY_BOUNDS) if bound is None else LATENCY_BOUNDS.index(bound)
    assert [place for place, count in enumerate(histogram.counts) if count] == [index]
    assert histogram.sum == seconds
    assert sorted(LATENCY_BOUNDS) == list(LATENCY_BOUNDS)


def test_what_is_counted() -> None:
    """An engine's reply is counted with all its times, a local reply with its total time only."""
    metrics = Metrics()
    series = metrics.series(KEY)
    series.count(200, total=0.3, first_byte=0.2, upstream=0.1)
    series.count(503, total=0.3, first_byte=0.2, upstream=0.1)
    series.count_failure(503, 2.0)
    series.count_error("deadline")
    series.count_error("deadline")
    unrouted, text = metrics.by_key.values()
    assert (unrouted.key, unrouted.statuses) == (SeriesKey(), {})
    assert (text.key, text.statuses, text.errors) == (KEY, {200: 1, 503: 2}, {"deadline": 2})
    assert (sum(text.total.counts), text.total.sum) == (3, pytest.approx(2.6))
    assert (sum(text.first_byte.counts), text.first_byte.sum) == (2, pytest.approx(0.4))
    assert (sum(text.upstream.counts), text.upstream.sum) == (2, pytest.approx(0.2))


def test_a_key_has_one_series() -> None:
    """The same route, arm, engine and endpoint always give the same series."""
    metrics = Metrics()
    assert metrics.series(KEY) is metrics.series(SeriesKey("all", "candidate", "triton", "http://e0:8000"))
    assert metrics.series(SeriesKey()) is metrics.unrouted


def test_workers_add_up() -> None:
    """Each series is the sum over the workers, including a series that only one worker has."""
    one, other = Metrics(), Metrics()
    for metrics, status in ((one, 200), (other, 200), (other, 404)):
        series = metrics.series(KEY)
        series.count(status, 0.1, 0.1, 0.1)
        series.count_error("client_gone")
        series.retries += 1
        series.in_flight += 2
        series.request_bytes += 10
        series.response_bytes += 100
        series.messages_sent += 3
        series.messages_received += 4
    other.series(SeriesKey("other")).count(200, 1.0, 1.0, 1.0)
    sums = add_up([one.by_key, other.by_key])
    both = sums[KEY]
    assert sums.keys() == {SeriesKey(), KEY, SeriesKey("other")}
    assert (both.statuses, both.errors) == ({200: 2, 404: 1}, {"client_gone": 3})
    assert (both.retries, both.in_flight, both.request_bytes, both.response_bytes) == (3, 6, 30, 300)
    assert (both.messages_sent, both.messages_received) == (9, 12)
    assert (sum(both.total.counts), both.total.sum) == (3, pytest.approx(0.3))
    assert sums[SeriesKey("other")].statuses == {200: 1}
    assert add_up([]) is None


def test_endpoints_that_are_gone_share_a_series() -> None:
    """Series of endpoints that discovery has lost are added up, so that addresses that come and go do not fill the
    memory; one with a request under way waits for its end."""
    metrics, places = Metrics(), set()
    for at in range(3):
        series = metrics.series(KEY._replace(endpoint=f"http://10.0.0.{at}"))
        series.count(200, 0.5, 0.25, 0.25)
        places.add(("triton", series.key.endpoint))
    stays = metrics.series(KEY)
    busy = metrics.series(KEY._replace(endpoint="http://10.0.0.2"))
    busy.in_flight = 1
    assert metrics.merge_gone(places) == {("triton", "http://10.0.0.2")}
    gone = KEY._replace(endpoint=GONE)
    assert metrics.by_key[gone].statuses == {200: 2} and metrics.by_key[KEY] is stays
    busy.in_flight = 0
    assert metrics.merge_gone(places) == set()
    assert set(metrics.by_key) == {SeriesKey(), KEY, gone}
    assert (metrics.by_key[gone].statuses, metrics.by_key[gone].total.sum) == ({200: 3}, 1.5)
