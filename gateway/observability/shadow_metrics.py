"""What becomes of mirrored requests, as Prometheus' text has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import PrometheusFamily


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    """Of one route."""

    captured: int = 0  # copied by workers, and handed over
    mirrored: int = 0  # of these, asked of the candidate
    outcomes: Mapping[str, int] = field(default_factory=dict)  # values of comparison.judging.Outcome
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason


def shadow_metrics(counts: Mapping[str, ShadowCounts]) -> Iterator[PrometheusFamily]:
    """The families, where some route is mirrored."""
    if not counts:
        return
    captured = prometheus_text.counter("pointsman_shadow_captured", "Requests copied to be mirrored.", labels=["route"])
    mirrored = prometheus_text.counter("pointsman_shadow_mirrored", "Requests asked of a candidate.", labels=["route"])
    outcomes = prometheus_text.counter(
        "pointsman_shadow_outcomes", "Mirrored requests by how the answers compare.", labels=["route", "outcome"]
    )
    dropped = prometheus_text.counter(
        "pointsman_shadow_dropped", "Sampled requests that were not mirrored, by why.", labels=["route", "reason"]
    )
    for route, found in counts.items():
        captured.add([route], found.captured)
        mirrored.add([route], found.mirrored)
        for outcome, number in found.outcomes.items():
            outcomes.add([route, outcome], number)
        for reason, number in found.dropped.items():
            dropped.add([route, reason], number)
    yield from (captured, mirrored, outcomes, dropped)
