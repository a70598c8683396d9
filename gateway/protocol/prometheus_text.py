"""Prometheus' text format, and the histograms behind it: one writer for the gateway and the engine host.

Source: Prometheus, "Exposition formats", text format 0.0.4; OpenMetrics 1.0, "Text format".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf, isfinite, isnan
from typing import NamedTuple

CONTENT_TYPE = "text/plain; charset=utf-8; version=0.0.4"
OPENMETRICS_TYPE = "application/openmetrics-text"
OPENMETRICS_CONTENT_TYPE = f"{OPENMETRICS_TYPE}; version=1.0.0; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# Go, and so Prometheus, writes larger numbers with an exponent.
_MAX_PLAIN_DIGITS = 6


class MetricSample(NamedTuple):
    """One value. `suffix` follows the family's name: `_bucket`, `_sum`. An int is written without a point."""

    value: float
    labels: Mapping[str, str] = {}  # never changed
    suffix: str = ""


@dataclass(slots=True)
class PrometheusFamily:
    """All samples of one name; `kind` is counter, gauge or histogram, `labels` are the label names of `add`."""

    name: str
    help: str
    kind: str
    labels: Sequence[str] = ()
    samples: list[MetricSample] = field(default_factory=list)

    def add(self, labels: Sequence[str], value: float) -> None:
        """Add a value by its labels, in the order of `self.labels`."""
        self.samples.append(MetricSample(float(value), dict(zip(self.labels, labels, strict=True))))

    def add_histogram(
        self, labels: Sequence[str], bounds: Iterable[object], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram: counts by bucket, the last of which is above every bound, and the sum of the values."""
        named = dict(zip(self.labels, labels, strict=True))
        self.samples += histogram_samples(named, [*map(str, bounds), "+Inf"], map(float, counts), float(total))


def counter(name: str, help: str, labels: Sequence[str] = (), value: float | None = None) -> PrometheusFamily:
    """A counter; `_total` ends its name. `value` is that of one without labels."""
    return _family(f"{name}_total", help, "counter", labels, value)


def gauge(name: str, help: str, labels: Sequence[str] = (), value: float | None = None) -> PrometheusFamily:
    """A gauge; `value` is that of one without labels."""
    return _family(name, help, "gauge", labels, value)


def _family(name: str, help: str, kind: str, labels: Sequence[str], value: float | None) -> PrometheusFamily:
    family = PrometheusFamily(name, help, kind, labels)
    if value is not None:
        family.add((), value)
    return family


def histogram_samples(
    labels: Mapping[str, str], bounds: Iterable[str], counts: Iterable[float], total: float
) -> Iterator[MetricSample]:
    """The samples of a histogram: its number of values, their sum, and by bound how many are at most that."""
    cumulative = list(accumulate(counts))
    yield MetricSample(cumulative[-1], labels, "_count")
    yield MetricSample(total, labels, "_sum")
    for bound, count in zip(bounds, cumulative, strict=True):
        yield MetricSample(count, {**labels, "le": bound}, "_bucket")


@dataclass(slots=True)
class Histogram:
    """Counts of values by bucket; the last count is of the values above every bound."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _merged(families: Iterable[PrometheusFamily]) -> dict[str, tuple[PrometheusFamily, list[MetricSample]]]:
    merged: dict[str, tuple[PrometheusFamily, list[MetricSample]]] = {}
    for family in families:
        merged.setdefault(family.name, (family, []))[1].extend(family.samples)
    return merged


def write_openmetrics(families: Iterable[PrometheusFamily], exemplar: Callable[[str, Mapping[str, str]], str]) -> bytes:
    """The same families in OpenMetrics 1.0. `exemplar` is what stands behind a bucket of a family with these labels,
    with the blank before it."""
    lines: list[str] = []
    for name, (family, samples) in _merged(families).items():
        named = name.removesuffix("_total") if family.kind == "counter" else name
        help_text = family.help.translate(_ESCAPES)
        lines += (f"# TYPE {named} {family.kind}\n", f"# HELP {named} {help_text}\n")
        totals: list[str] = []  # of a histogram, which stand behind its buckets
        for value, labels, suffix in samples:
            line = f"{name}{suffix}{_labels(labels)} {number_text(value)}"
            if suffix == "_bucket":
                lines.append(f"{line}{exemplar(name, labels)}\n")
                if labels["le"] == "+Inf":
                    lines += totals
                    totals = []
            elif suffix:
                totals.append(f"{line}\n")
            else:
                lines.append(f"{line}\n")
    return "".join([*lines, "# EOF\n"]).encode()


def write(families: Iterable[PrometheusFamily]) -> bytes:
    """The text of all families; those of one name are written as one."""
    merged = _merged(families)
    lines: list[str] = []
    for name, (family, samples) in merged.items():
        help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines += (f"# HELP {name} {help_text}\n", f"# TYPE {name} {family.kind}\n")
        lines += [f"{name}{suffix}{_labels(labels)} {number_text(value)}\n" for value, labels, suffix in samples]
    return "".join(lines).encode()


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(labels.items())]) + "}"


def number_text(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value == inf else "-Inf"
    text = repr(value)
    whole, _, fraction = text.partition(".")
    if value <= 0 or len(whole) <= _MAX_PLAIN_DIGITS or not fraction:
        return text
    mantissa = f"{whole[0]}.{whole[1:]}{fraction}".rstrip("0.")
    return f"{mantissa}e+{len(whole) - 1:02d}"
