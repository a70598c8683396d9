"""Recent rates and latencies."""

from copy import deepcopy

import pytest

from gateway.admin.traffic_rates import Traffic, quantile
from gateway.observability.metrics import LATENCY_BOUNDS, Metrics, RequestSeries, SeriesKey


def buckets(**counts: int) -> list[int]:
    """Counts of a histogram, by bucket index."""
    found = [0] * (len(LATENCY_BOUNDS) + 1)
    for index, count in counts.items():
        found[int(index[1:])] = count
    return found


@pytest.mark.parametrize(
    "counts, share, seconds",
    [
        (buckets(), 0.5, None),
        (buckets(_3=10), 0.5, 0.00075),
        (buckets(_3=10), 1.0, 0.001),
        (buckets(_0=10), 0.5, 0.00005),
        (buckets(_3=50, _9=50), 0.5, 0.001),
        (buckets(_3=50, _9=50), 0.75, 0.075),
        (buckets(_19=10), 0.5, 120.0),
    ],
)
def test_a_quantile_lies_within_its_bucket(counts: list[int], share: float, seconds: float | None) -> None:
    """A quantile is interpolated within its bucket; beyond all bounds it is the last bound."""
    assert quantile(counts, share) == pytest.approx(seconds)


def test_rates_are_of_the_window() -> None:
    """Rates cover only the window's seconds, per group; a group without requests has no latency."""
    metrics = Metrics()

    def series(route: str, endpoint: str) -> RequestSeries:
        return metrics.series(SeriesKey(route, "", "it", endpoint))

    def look(now: float) -> None:
        traffic.look(deepcopy(metrics.by_key), now)

    traffic = Traffic(window_seconds=5)
    for _ in range(100):
        series("a", "one").count(200, 9.0, 9.0, 9.0)
    look(0.0)
    assert traffic.rates(lambda key: key.route)["a"].to_json() == {"rate": 0.0, "errors": 0.0, "p50": None, "p95": None}
    for now in range(1, 8):
        for _ in range(10):
            series("a", "one").count(200, 0.0008, 0.1, 0.1)
        series("b", "one").count(200, 0.02, 0.1, 0.1)
        series("b", "one").count_error("deadline")
        look(float(now))
    by_route, by_engine = traffic.rates(lambda key: key.route), traffic.rates(lambda key: key.engine)
    assert by_route["a"].to_json() == {"rate": 10.0, "errors": 0.0, "p50": 0.00075, "p95": 0.000975}
    assert (by_route["b"].to_json()["rate"], by_route["b"].to_json()["errors"]) == (1.0, 1.0)
    assert by_engine["it"].to_json()["rate"] == 11.0


def test_a_worker_that_died_counts_nothing_back() -> None:
    """A dead worker's missing counts do not give a negative rate."""
    metrics, fewer = Metrics(), Metrics()
    key = SeriesKey("a")
    for _ in range(5):
        metrics.series(key).count(200, 0.1, 0.1, 0.1)
    fewer.series(key).count(200, 0.1, 0.1, 0.1)
    traffic = Traffic()
    traffic.look(deepcopy(metrics.by_key), 0.0)
    traffic.look(deepcopy(fewer.by_key), 1.0)
    assert traffic.rates(lambda key: key.route)["a"].to_json() == {"rate": 0.0, "errors": 0.0, "p50": None, "p95": None}
