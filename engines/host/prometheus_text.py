"""Prometheus' text format.

Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

CONTENT_TYPE = "text/plain; charset=utf-8; version=0.0.4"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value. `suffix` is what stands behind the family's name: `_bucket`, `_sum`."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class PrometheusFamily:
    """All samples of one name; `kind` is counter, gauge, histogram or summary."""

    name: str
    help: str
    kind: str
    samples: tuple[MetricSample, ...]


def write(families: Iterable[PrometheusFamily]) -> bytes:
    """The text of all families; one that is named twice is told once, one without samples not at all."""
    merged: dict[str, PrometheusFamily] = {}
    for family in families:
        known = merged.get(family.name)
        merged[family.name] = family if known is None else replace(known, samples=known.samples + family.samples)
    return "".join(_family(family) for family in merged.values() if family.samples).encode()


def _family(family: PrometheusFamily) -> str:
    help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {family.name} {help_text}\n", f"# TYPE {family.name} {family.kind}\n"]
    lines += [
        f"{family.name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}\n" for sample in family.samples
    ]
    return "".join(lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(labels.items())) + "}"


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e17 else repr(value)
