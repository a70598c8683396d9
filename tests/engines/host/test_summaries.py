"""Summaries of latencies, and the options of the metrics."""

import math

import pytest

from engines.host.metrics_config import MetricsConfig, read_metrics_options
from engines.host.statistics import Statistics
from engines.host.summaries import SummarizedDuration, summary_families
from gateway.protocol import prometheus_text

SECOND = 1_000_000_000


class Clock:
    ns = 0

    def now(self) -> int:
        return self.ns


def test_quantiles_are_those_of_the_last_minute() -> None:
    """A quantile is the value at its rank, within 0.2 %; values older than a minute do not count."""
    clock = Clock()
    duration = SummarizedDuration(clock.now)
    assert all(map(math.isnan, duration.quantiles([0.5, 1.0])))
    for microseconds in range(1, 100_001):
        duration.add(microseconds * 1000)
    for share, value in zip((0.0, 0.5, 0.9, 0.999, 1.0), duration.quantiles([0.0, 0.5, 0.9, 0.999, 1.0]), strict=True):
        assert value == pytest.approx(max(1, share * 100_000), rel=0.002)
    clock.ns += 40 * SECOND
    duration.add(7_000)
    clock.ns += 25 * SECOND
    assert duration.quantiles([0.0, 1.0]) == [7, 7]
    assert duration.count == 100_001
    clock.ns += 60 * SECOND
    assert all(map(math.isnan, duration.quantiles([0.5])))


class Model:
    name, version, is_cached = "m", "1", False

    def __init__(self, *, is_cached: bool = False) -> None:
        clock = Clock()
        self.is_cached = is_cached
        self.metric_labels = {"model": "m", "version": "1"}
        self.statistics = Statistics(clock.now, clock.now, duration=lambda: SummarizedDuration(clock.now))
        for duration in (self.statistics.success, self.statistics.queue, self.statistics.cache_hits):
            duration.add(55_999)


@pytest.mark.parametrize("is_cached", [False, True])
def test_summaries_have_triton_s_names(is_cached: bool) -> None:
    """A model has five summaries; a cached one those of the cache in place of that of requests."""
    families = [each for each in summary_families([Model(is_cached=is_cached)], [0.5, 1.0]) if each.samples]  # type: ignore[list-item]
    text = prometheus_text.write(families).decode()
    labels = 'model="m",version="1"'
    name = "nv_cache_hit_summary_per_model" if is_cached else "nv_inference_request_summary_us"
    assert (
        f"# TYPE {name} summary\n{name}_count{{{labels}}} 1\n{name}_sum{{{labels}}} 55\n"
        f'{name}{{model="m",quantile="0.5",version="1"}} 55\n{name}{{model="m",quantile="1",version="1"}} 55\n'
    ) in text
    assert ("nv_inference_request_summary_us" in text) is not is_cached
    assert 'nv_inference_compute_infer_summary_us{model="m",quantile="1",version="1"} NaN' in text


def test_options() -> None:
    """The last value of a setting counts; errors of quantiles are read and not used."""
    assert read_metrics_options([]) == MetricsConfig(True, False, (0.5, 0.9, 0.95, 0.99, 0.999), 1 << 28)
    texts = ["summary_latencies=false", "summary_latencies=true", "counter_latencies=false"]
    config = read_metrics_options([*texts, "summary_quantiles=0.5:0.05,1:0"], 64)
    assert config == MetricsConfig(False, True, (0.5, 1.0), 64)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("summary_latencies", "--metrics-config is '<setting>=<value>', not 'summary_latencies'"),
        ("a,summary_latencies=true", "--metrics-config is '<setting>=<value>'"),
        ("summary_latencies=yes", "--metrics-config summary_latencies is true or false, not 'yes'"),
        ("summary_quantiles=0.5", "summary_quantiles is '<quantile>:<error>,...' with numbers from 0 to 1, not '0.5'"),
        ("summary_quantiles=2:0.1", "numbers from 0 to 1"),
        ("histogram_latencies=true", "--metrics-config has no setting 'histogram_latencies': it is counter_latencies"),
    ],
)
def test_options_that_are_none(text: str, reason: str) -> None:
    """The error names the setting and what would be right."""
    with pytest.raises(ValueError) as caught:
        read_metrics_options([text])
    assert reason in str(caught.value)
