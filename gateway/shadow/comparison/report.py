"""The report of a mirrored route: counts, distributions of differences, and the requests that differ most.

A report has a bounded size. The shadow process makes it, the control process stores it; nothing here needs numpy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from math import floor, inf, isfinite, log10
from typing import TYPE_CHECKING, Any

from gateway.config.experiment_specs import ShadowSpec

if TYPE_CHECKING:  # its numbers come in as plain values
    from gateway.shadow.comparison.tensors import TensorDifference
    from gateway.shadow.comparison.texts import TextDifference
    from gateway.shadow.comparison.verdict import Verdict

Json = dict[str, Any]

MAX_WORST = 20
# Engines choose the names of outputs; these bound the memory.
_MAX_OUTPUTS = 200
_MAX_KINDS = 50
_MAX_OUTPUTS_SHOWN = 8  # of one request
# Bins of a tenth of a decade: quantiles are accurate to a quarter.
_BINS_PER_DECADE = 10
_ZERO = -1000  # the bin of zeros
_LEAST, _MOST = -300, 300
_SHARES = 20  # bins from 0 to 1
_LATENCIES = ("primary", "candidate", "primary_first", "candidate_first")


@dataclass(slots=True)
class Distribution:
    """A distribution of non-negative values in bounded memory: exact minimum, maximum and mean, quantiles by bins; with
    `is_share`, of values from 0 to 1."""

    is_share: bool = False
    count: int = 0
    sum: float = 0.0
    least: float = inf
    most: float = -inf
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Count a value; one that is not finite is ignored."""
        if not isfinite(value):
            return
        self.count += 1
        self.sum += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        place = self._bin(value)
        self.bins[place] = self.bins.get(place, 0) + 1

    def quantile(self, share: float) -> float | None:
        """The value that this share of all does not exceed, to the width of a bin; None where there are none."""
        remaining = share * self.count
        for place in sorted(self.bins):
            remaining -= self.bins[place]
            if remaining <= 0:
                return min(self.most, max(self.least, self._edges(place)[1]))
        return None if not self.count else self.most

    def to_json(self) -> dict[str, Any]:
        if not self.count:
            return {"count": 0, "bins": []}
        quantiles = {f"p{round(100 * share)}": self.quantile(share) for share in (0.5, 0.9, 0.99)}
        bins = [
            dict(zip(("from", "to", "count"), (*self._edges(place), self.bins[place]), strict=True))
            for place in sorted(self.bins)
        ]
        ends = {"least": self.least, "mean": self.sum / self.count, "most": self.most}
        return {"count": self.count, **ends, **quantiles, "bins": bins}

    def _bin(self, value: float) -> int:
        if self.is_share:
            return min(_SHARES - 1, max(0, floor(value * _SHARES)))
        if value <= 0:
            return _ZERO
        return min(_MOST, max(_LEAST, floor(_BINS_PER_DECADE * log10(value))))

    def _edges(self, place: int) -> tuple[float, float]:
        if self.is_share:
            return place / _SHARES, (place + 1) / _SHARES
        if place == _ZERO:
            return 0.0, 0.0
        return 10 ** (place / _BINS_PER_DECADE), 10 ** ((place + 1) / _BINS_PER_DECADE)


def _shares() -> Distribution:
    return Distribution(is_share=True)


@dataclass(slots=True)
class TensorReport:
    compared: int = 0
    agreeing: int = 0
    problems: Counter[str] = field(default_factory=Counter)  # why outputs could not be compared
    outside: int = 0  # elements beyond the tolerance
    nonfinite: int = 0
    max_absolute: Distribution = field(default_factory=Distribution)
    max_relative: Distribution = field(default_factory=Distribution)
    mean_absolute: Distribution = field(default_factory=Distribution)
    cosine_distance: Distribution = field(default_factory=Distribution)  # 1 - cosine
    argmax: Distribution = field(default_factory=_shares)
    top_k: Distribution = field(default_factory=_shares)

    def add(self, found: TensorDifference) -> None:
        self.compared += 1
        self.agreeing += found.agrees
        if found.problem:
            _count(self.problems, found.problem)
            if not found.index:
                return
        self.outside += found.outside
        self.nonfinite += found.nonfinite
        self.max_absolute.add(found.max_absolute)
        self.max_relative.add(found.max_relative)
        self.mean_absolute.add(found.mean_absolute)
        if found.cosine is not None:
            self.cosine_distance.add(max(0.0, 1.0 - found.cosine))
        if found.argmax is not None and found.top_k is not None:
            self.argmax.add(found.argmax)
            self.top_k.add(found.top_k)


@dataclass(slots=True)
class TextReport:
    compared: int = 0
    agreeing: int = 0
    equal: int = 0  # by the text alone
    problems: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)  # "stop/length" -> texts; equal ones too
    calls_differ: int = 0
    first_token: Distribution = field(default_factory=Distribution)
    first_character: Distribution = field(default_factory=Distribution)
    prefix_share: Distribution = field(default_factory=_shares)
    primary_tokens: Distribution = field(default_factory=Distribution)
    candidate_tokens: Distribution = field(default_factory=Distribution)

    def add(self, found: TextDifference) -> None:
        self.compared += 1
        self.agreeing += found.agrees
        if found.problem:
            _count(self.problems, found.problem)
            return
        self.equal += found.first_character is None
        if any(found.finishes):
            _count(self.finishes, "/".join(found.finishes))
        self.calls_differ += found.calls_differ
        if found.first_character is not None:
            self.first_character.add(found.first_character)
        if found.first_token is not None:
            self.first_token.add(found.first_token)
        self.prefix_share.add(found.prefix_share)
        self.primary_tokens.add(found.tokens[0])
        self.candidate_tokens.add(found.tokens[1])


@dataclass(slots=True)
class RouteReport:
    """One route and its shadow, since a time in seconds since 1970."""

    route: str
    shadow: ShadowSpec
    since: float
    updated: float = 0.0
    mirrored: int = 0  # requests sent to the candidate
    outcomes: Counter[str] = field(default_factory=Counter)  # by ComparisonOutcome
    dropped: Counter[str] = field(default_factory=Counter)  # by reason
    statuses: Counter[str] = field(default_factory=Counter)  # "primary/candidate", such as "200/503"
    primaries: Counter[str] = field(default_factory=Counter)  # engines
    latency: dict[str, Distribution] = field(default_factory=lambda: {name: Distribution() for name in _LATENCIES})
    tensors: dict[str, TensorReport] = field(default_factory=dict)
    texts: dict[str, TextReport] = field(default_factory=dict)
    outputs_left_out: int = 0  # beyond the bound
    worst: list[tuple[float, Json]] = field(default_factory=list)  # the largest difference first
    failures: list[Json] = field(default_factory=list)  # the last ones, the latest first

    @property
    def compared(self) -> int:
        """Requests with a reply from both engines."""
        return self.outcomes["agreeing"] + self.outcomes["differing"]

    def is_of(self, shadow: ShadowSpec) -> bool:
        """Whether comparisons by this spec may be added: the same candidate and the same tolerance."""
        own = self.shadow
        measure = (own.engine, own.model, own.tolerance, own.top_k)
        return measure == (shadow.engine, shadow.model, shadow.tolerance, shadow.top_k)

    def drop(self, reason: str) -> None:
        _count(self.dropped, reason)

    def answered(self, engine: str, statuses: str, seconds: tuple[float, float, float, float] | None) -> None:
        """Count a pair of replies; `seconds` are the primary's and the candidate's to the end, then to the first byte;
        None where one has failed."""
        _count(self.primaries, engine)
        _count(self.statuses, statuses)
        if seconds is not None:
            for name, value in zip(_LATENCIES, seconds, strict=True):
                self.latency[name].add(value)

    def add(self, verdict: Verdict, facts: Json, now: float) -> None:
        """Add a comparison; `facts` describe the request, in the entry of one that differs."""
        outcome = verdict.outcome.value
        self.updated = now
        self.outcomes[outcome] += 1
        pairs: list[tuple[Any, Any, Any]] = [(self.tensors, TensorReport, found) for found in verdict.tensors]
        pairs += [(self.texts, TextReport, found) for found in verdict.texts]
        for reports, kind, found in pairs:
            if found.name in reports or len(reports) < _MAX_OUTPUTS:
                reports.setdefault(found.name, kind()).add(found)
            else:
                self.outputs_left_out += 1
        if outcome == "differing":
            badness = verdict.badness
            entry = facts | {"badness": number(badness), "outputs": _outputs(verdict)}
            self.worst.append((badness, entry))
            self.worst.sort(key=lambda each: -each[0])
            del self.worst[MAX_WORST:]
        elif outcome != "agreeing":
            self.failures.insert(0, facts | {"outcome": outcome, "reason": verdict.reason})
            del self.failures[MAX_WORST:]

    def to_json(self) -> Json:
        """The report without the workers' counts."""
        shadow = {name: value for name, value in asdict(self.shadow).items() if name != "location"}
        outcomes = {
            name: self.outcomes[name]
            for name in ("agreeing", "differing", "primary_failed", "candidate_failed", "both_failed")
        }
        return {
            "route": self.route,
            "shadow": shadow,
            "primary_engines": sorted(self.primaries),
            "since": self.since,
            "updated": self.updated or None,
            "mirrored": self.mirrored,
            "compared": self.compared,
            "agreement": self.outcomes["agreeing"] / self.compared if self.compared else None,
            **outcomes,
            "dropped": dict(self.dropped),
            "statuses": dict(self.statuses),
            "latency": {name: each.to_json() for name, each in self.latency.items()},
            "tensors": {name: _output_json(each) for name, each in self.tensors.items()},
            "texts": {name: _output_json(each) for name, each in self.texts.items()},
            "outputs_left_out": self.outputs_left_out,
            "worst": [entry for _, entry in self.worst],
            "failures": self.failures,
        }


def number(value: float | None) -> float | str | None:
    """A number as JSON; the name of one that is not finite."""
    return value if value is None or isfinite(value) else str(value)


def _count(counter: Counter[str], what: str) -> None:
    """Count one more, as "others" beyond the bound."""
    counter[what if what in counter or len(counter) < _MAX_KINDS else "others"] += 1


def _output_json(report: TensorReport | TextReport) -> Json:
    fields: Json = {}
    for name in report.__slots__:
        value = getattr(report, name)
        fields[name] = value.to_json() if isinstance(value, Distribution) else value
    return fields


def _outputs(verdict: Verdict) -> list[Json]:
    """The outputs of a request that differ."""
    differing: list[Json] = []
    outputs: list[Any] = [*verdict.tensors, *verdict.texts]
    for each in outputs:
        if not each.agrees:
            fields = {name: getattr(each, name) for name in each.__slots__ if name != "around" or any(each.around)}
            differing.append(
                {name: number(value) if isinstance(value, float) else value for name, value in fields.items()}
            )
    return differing[:_MAX_OUTPUTS_SHOWN]
