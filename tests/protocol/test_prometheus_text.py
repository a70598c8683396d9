"""The Prometheus text format."""

import pytest
from prometheus_client.utils import floatToGoString

from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import Histogram, MetricSample, PrometheusFamily


def test_families_of_one_name_are_one() -> None:
    """Families of one name share one HELP and one TYPE line, followed by all samples."""
    families = [
        PrometheusFamily("a", "A", "gauge", samples=[MetricSample(1, {"m": "x"})]),
        PrometheusFamily("b", "two\nlines", "gauge"),
        PrometheusFamily("a", "A", "gauge", samples=[MetricSample(1.5, {"n": 'a"b', "m": "y"}), MetricSample(2.0)]),
    ]
    assert prometheus_text.write(families).decode() == (
        '# HELP a A\n# TYPE a gauge\na{m="x"} 1\na{m="y",n="a\\"b"} 1.5\na 2.0\n# HELP b two\\nlines\n# TYPE b gauge\n'
    )


def test_a_histogram_is_cumulative() -> None:
    """Each bucket counts all values up to its bound; the last bucket counts every value."""
    histogram = Histogram((0.1, 1.0))
    for value in (0.1, 0.5, 7.0):
        histogram.observe(value)
    family = PrometheusFamily("s", "S", "histogram", ("m",))
    family.add_histogram(("x",), histogram.bounds, histogram.counts, histogram.sum)
    assert prometheus_text.write([family]).decode().splitlines()[2:] == [
        's_count{m="x"} 3.0',
        's_sum{m="x"} 7.6',
        's_bucket{le="0.1",m="x"} 1.0',
        's_bucket{le="1.0",m="x"} 2.0',
        's_bucket{le="+Inf",m="x"} 3.0',
    ]


@pytest.mark.parametrize(
    "value", [0.0, -2.5, 999999.5, 1234567.0, 12345678.25, 1e15, 1e16, 1e300, 1e-7, float("inf"), float("-inf")]
)
def test_numbers_are_written_as_go_writes_them(value: float) -> None:
    """Numbers are written as in Prometheus' own client."""
    assert prometheus_text.write([prometheus_text.gauge("a", "", value=value)]).split()[-1].decode() == floatToGoString(
        value
    )
