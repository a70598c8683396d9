"""Custom metrics of models: shared by their instances, written for Prometheus."""

import pytest

from engines.core.errors import EngineError
from engines.host.custom_metrics import CustomMetrics
from gateway.protocol import prometheus_text


def test_metrics_are_reported_as_text() -> None:
    """The same labels are the same metric; a histogram counts the values up to each bound."""
    metrics = CustomMetrics()
    family = metrics.family("tokens", "Tokens\nmade", "counter")
    assert metrics.family("tokens", "", "counter") == family
    first = metrics.metric(family, {"model": 'a"b', "kind": "x"}, None)
    assert metrics.metric(family, {"kind": "x", "model": 'a"b'}, None) == first
    metrics.change("increment", first, 2)
    metrics.change("increment", first, 0.5)
    seconds = metrics.metric(metrics.family("seconds", "Seconds", "histogram"), {}, (0.1, 1.0))
    for value in (0.1, 0.5, 7):
        metrics.change("observe", seconds, value)
    assert prometheus_text.write(metrics.families()).decode() == (
        "# HELP tokens Tokens\\nmade\n"
        "# TYPE tokens counter\n"
        'tokens{kind="x",model="a\\"b"} 2.5\n'
        "# HELP seconds Seconds\n"
        "# TYPE seconds histogram\n"
        "seconds_count 3\n"
        "seconds_sum 7.6\n"
        'seconds_bucket{le="0.1"} 1\n'
        'seconds_bucket{le="1"} 2\n'
        'seconds_bucket{le="+Inf"} 3\n'
    )


def test_observations_are_merged_in_their_buckets() -> None:
    """Many observations can be merged as their sum and one count for each bucket and one beyond."""
    metrics = CustomMetrics()
    seconds = metrics.metric(metrics.family("s", "", "histogram"), {}, (0.1, 1.0))
    metrics.change("observe", seconds, 0.5)
    metrics.change("merge", seconds, ((2, 0, 1), 7.25))
    (family,) = metrics.families()
    values = {(sample.suffix, sample.labels.get("le")): sample.value for sample in family.samples}
    assert values == {
        ("_count", None): 4,
        ("_sum", None): 7.75,
        ("_bucket", "0.1"): 2,
        ("_bucket", "1"): 3,
        ("_bucket", "+Inf"): 4,
    }
    with pytest.raises(EngineError, match="2 counts for a histogram of 3 buckets"):
        metrics.change("merge", seconds, ((1, 1), 1.0))
    with pytest.raises(EngineError, match="'merge' takes counts and their sum"):
        metrics.change("merge", seconds, 1.0)


def test_metrics_live_as_long_as_somebody_has_them() -> None:
    """Instances share a metric by name; it disappears when the last of them drops it."""
    metrics = CustomMetrics()
    numbers = []
    for _ in range(2):
        family = metrics.family("g", "", "gauge")
        numbers.append((family, metrics.metric(family, {}, None)))
    metrics.change("set", numbers[0][1], 4)
    for number, (family, metric) in enumerate(numbers):
        assert metrics.value(metric) == 4
        metrics.drop_metric(metric)
        metrics.drop_family(family)
        assert len(list(metrics.families())) == 1 - number
    with pytest.raises(EngineError, match="Metric has been invalidated"):
        metrics.value(numbers[0][1])


REFUSED = [
    ("counter", "set", 1, "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
    ("counter", "increment", -1, "can only be incremented monotonically by non-negative values"),
    ("gauge", "observe", 1, "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
    ("histogram", "increment", 1, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
]


@pytest.mark.parametrize("kind, operation, value, text", REFUSED)
def test_kinds_do_what_they_do(kind: str, operation: str, value: float, text: str) -> None:
    """An operation that the kind does not support is refused with Triton's text."""
    metrics = CustomMetrics()
    metric = metrics.metric(metrics.family("m", "", kind), {}, (1.0,) if kind == "histogram" else None)
    with pytest.raises(EngineError, match=text):
        metrics.change(operation, metric, value)


@pytest.mark.parametrize("buckets", [(2.5, 0.1), (1.0, 1.0)])
def test_buckets_ascend(buckets: tuple[float, ...]) -> None:
    """Bounds of a histogram that do not ascend strictly are refused, as in Triton."""
    metrics = CustomMetrics()
    with pytest.raises(EngineError, match="must be strictly sorted"):
        metrics.metric(metrics.family("m", "", "histogram"), {}, buckets)


def test_a_name_has_one_kind() -> None:
    """A family of another kind under the same name is an error."""
    metrics = CustomMetrics()
    metrics.family("m", "", "counter")
    with pytest.raises(EngineError, match="'m' is a counter already"):
        metrics.family("m", "", "gauge")
    with pytest.raises(EngineError, match="Unsupported kind"):
        metrics.family("n", "", "dial")
