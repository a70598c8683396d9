"""Custom metrics of models (`pb_utils.MetricFamily`), stored here so that all instances of a model share them.

Source: Triton core `src/metric_family.cc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from engines.core.errors import internal, invalid
from engines.core.metric_kinds import KINDS, Change, check_change, unsupported
from gateway.protocol.prometheus_text import Histogram, MetricSample, PrometheusFamily, histogram_samples

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Metric:
    family: _Family
    labels: Labels
    histogram: Histogram | None
    value: float = 0.0
    num_users: int = 0

    def samples(self) -> Iterable[MetricSample]:
        labels = dict(self.labels)
        histogram = self.histogram
        if histogram is None:
            return (MetricSample(_number(self.value), labels),)
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        return histogram_samples(labels, bounds, histogram.counts, _number(histogram.sum))


@dataclass(slots=True)
class _Family:
    name: str
    description: str
    kind: str
    num_users: int = 0
    metrics: dict[Labels, int] = field(default_factory=dict)


class CustomMetrics:
    """The custom metrics of all models. Callers know families and metrics by number."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._families: dict[int, _Family] = {}
        self._metrics: dict[int, _Metric] = {}

    def family(self, name: str, description: str, kind: str) -> int:
        """Return the number of a family, a new one where the name is new.

        Raises: EngineError where the family is of another kind.
        """
        if kind not in KINDS:
            raise invalid(f"Unsupported kind '{kind}' passed to MetricFamily constructor.")
        for number, family in self._families.items():
            if family.name == name:
                if family.kind != kind:
                    raise invalid(f"Metric family '{name}' is a {family.kind} already, and can not be a {kind} too.")
                family.num_users += 1
                return number
        number = next(self._numbers)
        self._families[number] = _Family(name, description, kind, 1)
        return number

    def metric(self, family: int, labels: Mapping[str, str], buckets: tuple[float, ...] | None) -> int:
        """Return the number of a metric; the same labels are the same metric. Raises: EngineError."""
        parent = self._families.get(family)
        if parent is None:
            raise internal("Could not add a metric. Its family has been invalidated.")
        if parent.kind == "histogram":
            if buckets is None:
                raise invalid("Bucket boundaries not found in Metric args.")
            if list(buckets) != sorted(set(buckets)):
                raise invalid("Bucket boundaries must be strictly sorted.")
        elif buckets is not None:
            raise invalid(f"Unexpected args found in {parent.kind} Metric constructor.")
        key = tuple(sorted(labels.items()))
        number = parent.metrics.get(key, 0)
        if not number:
            number = parent.metrics[key] = next(self._numbers)
            histogram = None if buckets is None else Histogram(buckets)
            self._metrics[number] = _Metric(parent, key, histogram)
        self._metrics[number].num_users += 1
        return number

    def change(self, operation: str, metric: int, value: Change) -> None:
        """Do an operation: `increment`, `set`, `observe` or `merge`.

        Raises: EngineError where the metric is gone, or of a kind that lacks the operation.
        """
        target = self._find(metric, operation)
        check_change(target.family.kind, operation, value)
        histogram = target.histogram
        if isinstance(value, tuple):
            assert histogram is not None
            counts, total = value
            if len(counts) != len(histogram.counts):
                raise invalid(f"{len(counts)} counts for a histogram of {len(histogram.counts)} buckets")
            histogram.counts = [sum(pair) for pair in zip(histogram.counts, counts, strict=True)]
            histogram.sum += total
        elif histogram is not None:
            histogram.observe(value)
        elif operation == "set":
            target.value = value
        else:
            target.value += value

    def value(self, metric: int) -> float:
        """Raises: EngineError, for a histogram too."""
        target = self._find(metric, "get")
        if target.histogram is not None:
            raise unsupported("histogram", "Value")
        return target.value

    def drop_metric(self, metric: int) -> None:
        """Drop a user of a metric; without users the metric goes."""
        target = self._metrics.get(metric)
        if target is None:
            return
        target.num_users -= 1
        if target.num_users <= 0:
            del self._metrics[metric]
            target.family.metrics.pop(target.labels, None)

    def drop_family(self, family: int) -> None:
        """Drop a user of a family; without users the family goes, with its metrics."""
        target = self._families.get(family)
        if target is None:
            return
        target.num_users -= 1
        if target.num_users <= 0:
            del self._families[family]
            for number in target.metrics.values():
                self._metrics.pop(number, None)

    def families(self) -> Iterator[PrometheusFamily]:
        """The families as of now, for Prometheus' text."""
        for family in self._families.values():
            samples = [sample for number in family.metrics.values() for sample in self._metrics[number].samples()]
            yield PrometheusFamily(family.name, family.description, family.kind, samples=samples)

    def _find(self, metric: int, operation: str) -> _Metric:
        target = self._metrics.get(metric)
        if target is None:
            raise internal(f"Could not {operation} metric value. Metric has been invalidated.")
        return target


def _number(value: float) -> float:
    """Whole numbers without a point, as Triton writes them."""
    return int(value) if float(value).is_integer() else value
