"""What all comparisons of one route come to: counts, how far answers are apart, and the requests that differ most.

A report has a bounded size, however long it runs. It is made in the shadow process and kept in the control process,
which tells it; nothing here needs numpy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from gateway.config.experiment_specs import ShadowSpec
from gateway.shadow.comparison.distribution import Distribution

if TYPE_CHECKING:  # its numbers come in as plain values
    from gateway.shadow.comparison.tensors import TensorDifference
    from gateway.shadow.comparison.texts import TextDifference
    from gateway.shadow.comparison.verdict import Verdict

Json = dict[str, Any]

MAX_WORST = 20
# Engines name their outputs; one that invents names must not fill the memory.
_MAX_OUTPUTS = 200
_MAX_KINDS = 50
_MAX_OUTPUTS_TOLD = 8  # of one request


def _shares() -> Distribution:
    return Distribution(is_share=True)


@dataclass(slots=True)
class TensorReport:
    """Of one output that is a tensor."""

    compared: int = 0
    agreeing: int = 0
    problems: Counter[str] = field(default_factory=Counter)  # what could not be compared, in words
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
    """Of one output that is text."""

    compared: int = 0
    agreeing: int = 0
    equal: int = 0  # the text alone, however it ended
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
    """Of one route and its shadow, since a moment (seconds since 1970)."""

    route: str
    shadow: ShadowSpec
    since: float
    updated: float = 0.0
    mirrored: int = 0  # requests that the candidate was asked
    outcomes: Counter[str] = field(default_factory=Counter)  # values of judging.Outcome
    dropped: Counter[str] = field(default_factory=Counter)  # by the shadow process, and why
    statuses: Counter[str] = field(default_factory=Counter)  # "200/503": the primary's, the candidate's
    primaries: Counter[str] = field(default_factory=Counter)  # engines
    primary_seconds: Distribution = field(default_factory=Distribution)
    candidate_seconds: Distribution = field(default_factory=Distribution)
    primary_first_seconds: Distribution = field(default_factory=Distribution)
    candidate_first_seconds: Distribution = field(default_factory=Distribution)
    tensors: dict[str, TensorReport] = field(default_factory=dict)
    texts: dict[str, TextReport] = field(default_factory=dict)
    outputs_left_out: int = 0  # of more names than are kept
    worst: list[tuple[float, Json]] = field(default_factory=list)  # by how far they are apart, the furthest first
    failures: list[Json] = field(default_factory=list)  # the last ones, the latest first

    @property
    def compared(self) -> int:
        """Requests that both engines have answered."""
        return self.outcomes["agreeing"] + self.outcomes["differing"]

    def is_of(self, shadow: ShadowSpec) -> bool:
        """Whether comparisons by this spec may be added: the same candidate, judged by the same measure."""
        ours = self.shadow
        judged_by = (ours.engine, ours.model, ours.tolerance, ours.top_k)
        return judged_by == (shadow.engine, shadow.model, shadow.tolerance, shadow.top_k)

    def drop(self, reason: str) -> None:
        """A request that was handed over is not compared."""
        _count(self.dropped, reason)

    def answered(self, engine: str, statuses: str, seconds: tuple[float, float, float, float] | None) -> None:
        """How both have answered; `seconds` are the primary's and the candidate's to the end, and to the first byte,
        None where one of them has failed."""
        _count(self.primaries, engine)
        _count(self.statuses, statuses)
        if seconds is not None:
            self.primary_seconds.add(seconds[0])
            self.candidate_seconds.add(seconds[1])
            self.primary_first_seconds.add(seconds[2])
            self.candidate_first_seconds.add(seconds[3])

    def add(self, verdict: Verdict, facts: Json, now: float) -> None:
        """One more comparison; `facts` tell of the request, and become the entry of one that differs."""
        outcome = verdict.outcome.value
        self.updated = now
        self.outcomes[outcome] += 1
        for difference in verdict.tensors:
            self._add_tensor(difference)
        for found in verdict.texts:
            self._add_text(found)
        if outcome == "differing":
            badness = verdict.badness
            entry = facts | {"badness": number(badness), "outputs": _outputs(verdict)}
            self.worst.append((badness, entry))
            self.worst.sort(key=lambda each: -each[0])
            del self.worst[MAX_WORST:]
        elif outcome != "agreeing":
            self.failures.insert(0, facts | {"outcome": outcome, "reason": verdict.reason})
            del self.failures[MAX_WORST:]

    def _add_tensor(self, found: TensorDifference) -> None:
        if found.name in self.tensors or len(self.tensors) < _MAX_OUTPUTS:
            self.tensors.setdefault(found.name, TensorReport()).add(found)
        else:
            self.outputs_left_out += 1

    def _add_text(self, found: TextDifference) -> None:
        if found.name in self.texts or len(self.texts) < _MAX_OUTPUTS:
            self.texts.setdefault(found.name, TextReport()).add(found)
        else:
            self.outputs_left_out += 1

    def to_json(self) -> Json:
        """As JSON, but for what the workers count."""
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
            "latency": {
                "primary": self.primary_seconds.to_json(),
                "candidate": self.candidate_seconds.to_json(),
                "primary_first": self.primary_first_seconds.to_json(),
                "candidate_first": self.candidate_first_seconds.to_json(),
            },
            "tensors": {name: _told(each) for name, each in self.tensors.items()},
            "texts": {name: _told(each) for name, each in self.texts.items()},
            "outputs_left_out": self.outputs_left_out,
            "worst": [entry for _, entry in self.worst],
            "failures": self.failures,
        }


def number(value: float | None) -> float | str | None:
    """A number as JSON has it; what is not finite is told by its name."""
    return value if value is None or isfinite(value) else str(value)


def _count(counter: Counter[str], what: str) -> None:
    """Count one more; of more kinds than are kept, as others."""
    counter[what if what in counter or len(counter) < _MAX_KINDS else "others"] += 1


def _told(report: TensorReport | TextReport) -> Json:
    fields: Json = {}
    for name in report.__slots__:
        value = getattr(report, name)
        fields[name] = value.to_json() if isinstance(value, Distribution) else value
    return fields


def _outputs(verdict: Verdict) -> list[Json]:
    """The outputs of one request that do not agree."""
    found: list[Json] = []
    for difference in verdict.tensors:
        if not difference.agrees:
            fields = {name: getattr(difference, name) for name in difference.__slots__}
            found.append({name: number(value) if isinstance(value, float) else value for name, value in fields.items()})
    found += [
        {name: getattr(text, name) for name in text.__slots__ if name != "around" or any(text.around)}
        for text in verdict.texts
        if not text.agrees
    ]
    return found[:_MAX_OUTPUTS_TOLD]
