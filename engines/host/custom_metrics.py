"""Metrics that models make (`pb_utils.MetricFamily`), kept here so that all instances of a model share them.

Source: Triton core `src/metric_family.cc`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from engines.core.errors import EngineError, ErrorCode, internal, invalid
from engines.host.prometheus_text import MetricSample, PrometheusFamily
from engines.instances.host_interfaces import Change

Labels = tuple[tuple[str, str], ...]

KINDS = ("counter", "gauge", "histogram")

# What each operation is called in an error, and the kinds that have it.
_ALLOWED = {
    "increment": ("counter", "gauge"),
    "set": ("gauge",),
    "observe": ("histogram",),
    "merge": ("histogram",),
}


@dataclass(slots=True)
class _Metric:
    family: _Family
    labels: Labels
    bounds: tuple[float, ...]
    counts: list[int]
    value: float = 0.0  # of a histogram, the sum
    num_users: int = 0

    def samples(self) -> Iterator[MetricSample]:
        labels = dict(self.labels)
        if self.family.kind != "histogram":
            yield MetricSample(self.value, labels)
            return
        total = sum(self.counts)
        yield MetricSample(total, labels, "_count")
        yield MetricSample(self.value, labels, "_sum")
        so_far = 0
        for bound, number in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += number
            told = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield MetricSample(so_far, {**labels, "le": told}, "_bucket")


@dataclass(slots=True)
class _Family:
    name: str
    description: str
    kind: str
    num_users: int = 0
    metrics: dict[Labels, int] = field(default_factory=dict)


class CustomMetrics:
    """All models' own metrics. Families and metrics are numbers for those who use them."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._families: dict[int, _Family] = {}
        self._metrics: dict[int, _Metric] = {}

    def __repr__(self) -> str:
        return f"<CustomMetrics: {len(self._families)} families, {len(self._metrics)} metrics>"

    def family(self, name: str, description: str, kind: str) -> int:
        """The number of a family; one of that name may be there already.

        Raises: EngineError where it is of another kind.
        """
        if kind not in KINDS:
            raise invalid(f"Unsupported kind '{kind}' passed to MetricFamily constructor.")
        for number, known in self._families.items():
            if known.name == name:
                if known.kind != kind:
                    raise invalid(f"Metric family '{name}' is a {known.kind} already, and can not be a {kind} too.")
                known.num_users += 1
                return number
        number = next(self._numbers)
        self._families[number] = _Family(name, description, kind, 1)
        return number

    def metric(self, family: int, labels: Mapping[str, str], buckets: tuple[float, ...] | None) -> int:
        """The number of a metric; the same labels are the same metric.

        Raises: EngineError.
        """
        parent = self._families.get(family)
        if parent is None:
            raise internal("Could not add a metric. Its family has been invalidated.")
        if parent.kind == "histogram":
            if buckets is None:
                raise invalid("Bucket boundaries not found in Metric args.")
        elif buckets is not None:
            raise invalid(f"Unexpected args found in {parent.kind} Metric constructor.")
        key = tuple(sorted(labels.items()))
        number = parent.metrics.get(key, 0)
        if not number:
            number = parent.metrics[key] = next(self._numbers)
            bounds = tuple(sorted(buckets or ()))
            self._metrics[number] = _Metric(parent, key, bounds, [0] * (len(bounds) + 1))
        self._metrics[number].num_users += 1
        return number

    def change(self, operation: str, metric: int, value: Change) -> None:
        """`increment`, `set`, `observe` or `merge`.

        Raises: EngineError where the metric is gone, or of a kind that does not do that.
        """
        found = self._found(metric, operation)
        kind = found.family.kind
        if kind not in _ALLOWED[operation]:
            raise _unsupported(kind, operation.capitalize())
        if isinstance(value, tuple) != (operation == "merge"):
            raise invalid("'merge' takes counts and their sum, the other operations a number")
        if isinstance(value, tuple):
            counts, total = value
            if len(counts) != len(found.counts):
                raise invalid(f"{len(counts)} counts for a histogram of {len(found.counts)} buckets")
            found.counts = [sum(pair) for pair in zip(found.counts, counts, strict=True)]
            found.value += total
            return
        if operation == "set":
            found.value = value
        elif operation == "observe":
            found.counts[bisect_left(found.bounds, value)] += 1
            found.value += value
        elif kind == "counter" and value < 0:
            raise invalid(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            )
        else:
            found.value += value

    def value(self, metric: int) -> float:
        """Raises: EngineError, for a histogram too."""
        found = self._found(metric, "get")
        if found.family.kind == "histogram":
            raise _unsupported("histogram", "Value")
        return found.value

    def drop_metric(self, metric: int) -> None:
        """One that has made it does not need it any more."""
        found = self._metrics.get(metric)
        if found is None:
            return
        found.num_users -= 1
        if found.num_users <= 0:
            del self._metrics[metric]
            found.family.metrics.pop(found.labels, None)

    def drop_family(self, family: int) -> None:
        """The same; its metrics go with it."""
        found = self._families.get(family)
        if found is None:
            return
        found.num_users -= 1
        if found.num_users <= 0:
            del self._families[family]
            for number in found.metrics.values():
                self._metrics.pop(number, None)

    def families(self) -> Iterator[PrometheusFamily]:
        """What there is to tell now."""
        for family in self._families.values():
            samples = [sample for number in family.metrics.values() for sample in self._metrics[number].samples()]
            yield PrometheusFamily(family.name, family.description, family.kind, tuple(samples))

    def _found(self, metric: int, operation: str) -> _Metric:
        found = self._metrics.get(metric)
        if found is None:
            raise internal(f"Could not {operation} metric value. Metric has been invalidated.")
        return found


def _unsupported(kind: str, operation: str) -> EngineError:
    return EngineError(ErrorCode.UNSUPPORTED, f"TRITONSERVER_METRIC_KIND_{kind.upper()} does not support {operation}")
