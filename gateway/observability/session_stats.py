"""What workers have to do with sessions, and the same as Prometheus' metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import PrometheusFamily


@dataclass(frozen=True, slots=True)
class SessionUse:
    """One worker's sessions since its start, or those of several; `known` are those that it has at hand now."""

    read: int = 0  # from Redis
    unread: int = 0  # gone on without, since Redis was late or away
    created: int = 0
    shed: int = 0  # new ones, put elsewhere than at home, which had too much to do
    moved: Mapping[tuple[str, str, str], int] = field(default_factory=dict)  # by engine, endpoint they left, and why
    sequences_lost: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by engine and endpoint
    known: int = 0
    sequences_moved: Mapping[tuple[str, str, str], int] = field(default_factory=dict)  # as `moved`

    @property
    def ended(self) -> SessionUse:
        """The same of a worker that is gone."""
        return replace(self, known=0)


def session_metrics(use: SessionUse) -> Iterator[PrometheusFamily]:
    """The metrics of all workers together."""

    yield prometheus_text.counter("pointsman_sessions_created", "Sessions seen for the first time.", value=use.created)
    yield prometheus_text.counter(
        "pointsman_sessions_read", "Sessions that workers have read from Redis.", value=use.read
    )
    yield prometheus_text.counter(
        "pointsman_sessions_unread", "Sessions that went on without, since Redis was late or away.", value=use.unread
    )
    yield prometheus_text.counter(
        "pointsman_sessions_shed", "New sessions put elsewhere than at home, which had too much to do.", value=use.shed
    )
    yield prometheus_text.gauge("pointsman_sessions_known", "Sessions that workers have at hand.", value=use.known)
    yield _by_place(
        "pointsman_sessions_moved",
        "Sessions that went on at another endpoint, since theirs was drained, unavailable, or gone from the rules.",
        use.moved,
        "reason",
    )
    yield _by_place("pointsman_sequences_lost", "Sequences that ended with their endpoint.", use.sequences_lost)
    yield _by_place(
        "pointsman_sequences_moved",
        "Sequences that went on at another endpoint, which was told their inputs, since theirs was lost or drained.",
        use.sequences_moved,
        "reason",
    )


def _by_place(name: str, told: str, counted: Mapping[Any, int], *more: str) -> PrometheusFamily:
    """A counter by engine, endpoint, and `more` labels."""

    family = prometheus_text.counter(name, told, labels=["engine", "endpoint", *more])
    for key, number in counted.items():
        family.add(key, number)
    return family
