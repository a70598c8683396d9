"""The metrics of several servers as those of one: Prometheus' text is read, and equal series become one.

Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import TypeVar

from gateway.protocol.prometheus_text import number_text

T = TypeVar("T")
Steps = Generator[None, None, T]  # see `gateway.routing.steps`

Series = tuple[str, str]  # a sample's name and its labels, as written
Values = dict[Series, float]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*+")
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*+="(?:[^"\\]|\\.)*+"'
_SAMPLE = re.compile(
    rf"({_NAME.pattern})"
    rf"(\{{(?:{_LABEL}(?:,{_LABEL})*+,?+)?+\}})?+[ \t]++(\S++)(?:[ \t]++-?[0-9]++)?+[ \t]*+"
)
_KINDS = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_BREAK = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # some readers end a line there
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_MAX_WHOLE = 1 << 53
STEP = 32  # lines or values: about half a millisecond
_BOUND = re.compile(r',?le="[^"]*"')
# A device that several servers report, and shares of 1: the largest is shown, not the sum.
_DEVICE = 'gpu_uuid="'
_SHARES = ("_utilization", "_ratio", "_perc")


@dataclass(slots=True)
class MetricFamily:
    """All series of one family; `kind` is Prometheus' type."""

    help: str
    kind: str
    values: Values = field(default_factory=dict)

    def is_cumulative(self, series: Series) -> bool:
        """Whether its value only grows while its server runs, and adds up over servers."""
        name, labels = series
        if _DEVICE in labels:
            return False
        return self.kind in ("counter", "histogram") or (self.kind == "summary" and name.endswith(("_sum", "_count")))

    def is_added(self, series: Series) -> bool:
        """Whether servers' values are added up; otherwise the largest stands for all."""
        if self.kind == "gauge" or self.kind == "untyped":
            return _DEVICE not in series[1] and not series[0].endswith(_SHARES)
        return self.is_cumulative(series)


def read_families(text: str, is_wanted: Callable[[str], bool]) -> Steps[dict[str, MetricFamily]]:
    """The wanted families of a server, by name. Lines that are not understood are passed over, and so are families of a
    kind that Prometheus does not know: one of them would hide all others from it."""
    families: dict[str, MetricFamily] = {}
    helps: dict[str, str] = {}
    family: MetricFamily | None = None
    names: tuple[str, ...] = ()  # of the family's samples
    for number, line in enumerate(text.split("\n")):
        if number % STEP == 0:
            yield
        line = line.removesuffix("\r")
        if _BREAK.search(line) is not None:
            continue
        if line.startswith("#"):
            mark, _, rest = line[1:].strip().partition(" ")
            name, _, detail = rest.partition(" ")
            if mark == "HELP":
                helps[name] = detail
            elif mark == "TYPE" and _NAME.fullmatch(name):
                kind = detail.strip()
                names = (name, *[name + suffix for suffix in _SUFFIXES.get(kind, ())])
                is_shown = kind in _KINDS and is_wanted(name)
                family = families.setdefault(name, MetricFamily(helps.get(name, ""), kind)) if is_shown else None
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        name, labels, value = found[1], found[2] or "", found[3]
        if name not in names:  # a family without a TYPE
            names = (name,)
            family = families.setdefault(name, MetricFamily("", "untyped")) if is_wanted(name) else None
        if family is not None:
            try:
                family.values[name, "" if labels == "{}" else labels] = float(value)
            except ValueError:
                continue
    return {name: family for name, family in families.items() if family.values}


def sum_families(
    servers: Iterable[Mapping[str, MetricFamily]], carried: Mapping[str, MetricFamily]
) -> Steps[dict[str, MetricFamily]]:
    """The families of all servers as those of one; `carried` are counts of servers that are gone. Counters, sums and
    gauges are added up; of quantiles, shares and what servers say of a device they share, the largest is taken. A
    histogram keeps the bounds that all its servers have."""
    total: dict[str, MetricFamily] = {}
    times: Counter[Series] = Counter()
    for families in servers:
        for name, family in families.items():
            known = total.setdefault(name, MetricFamily(family.help, family.kind))
            if known.kind != family.kind:
                continue
            times.update(family.values.keys())
            for number, (series, value) in enumerate(family.values.items()):
                if number % STEP == 0:
                    yield
                before = known.values.get(series)
                if before is None or isnan(before):
                    known.values[series] = value
                elif family.is_added(series):
                    known.values[series] = before + value
                else:
                    known.values[series] = max(before, value)
    for name, family in carried.items():
        yield
        known = total.setdefault(name, MetricFamily(family.help, family.kind))
        for series, value in family.values.items():
            known.values[series] = known.values.get(series, 0.0) + value
    for family in total.values():
        yield
        if family.kind == "histogram":
            for name, labels in list(family.values):
                if name.endswith("_bucket") and times[name, labels] < times[_count_of(name, labels)]:
                    del family.values[name, labels]
    return total


def write_families(families: Mapping[str, MetricFamily]) -> Steps[bytes]:
    """The families as text."""
    lines: list[str] = []
    for name, family in families.items():
        if not family.values:
            continue
        lines += (f"# HELP {name} {family.help}\n", f"# TYPE {name} {family.kind}\n")
        for number, ((series, labels), value) in enumerate(family.values.items()):
            if number % STEP == 0:
                yield
            lines.append(f"{series}{labels} {_written(value)}\n")
    return "".join(lines).encode()


def _written(value: float) -> str:
    """Counts without a point, as Triton writes them."""
    return str(int(value)) if value.is_integer() and abs(value) < _MAX_WHOLE else number_text(value)


def _count_of(name: str, labels: str) -> Series:
    """The count of a bucket's histogram."""
    rest = _BOUND.sub("", labels).replace("{,", "{")
    return name.removesuffix("_bucket") + "_count", "" if rest == "{}" else rest
