"""The tokens of generations as Prometheus' metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gateway.observability.metrics import LATENCY_BOUNDS, SeriesKey, TokensSnapshot
from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import PrometheusFamily

LABELS = ("route", "arm", "engine", "endpoint")

_COUNTERS: dict[str, tuple[str, Callable[[TokensSnapshot], int]]] = {
    "prompt_tokens": ("Tokens of prompts, as engines counted them.", lambda tokens: tokens.prompt),
    "cached_tokens": ("Tokens of prompts that engines had seen before.", lambda tokens: tokens.cached),
    "completion_tokens": (
        "Tokens generated; of a stream whose engine does not count, its events.",
        lambda tokens: tokens.completion,
    ),
    "cancelled_tokens": ("Tokens generated for clients who then left.", lambda tokens: tokens.cancelled),
    "resumed_generations": ("Generations that broke off and went on elsewhere.", lambda tokens: tokens.resumed),
}
_HISTOGRAMS: dict[str, tuple[str, Callable[[TokensSnapshot], tuple[list[int], float]]]] = {
    "first_token_seconds": (
        "From a request's head to the first token of its streamed reply.",
        lambda tokens: tokens.first_token,
    ),
    "per_token_seconds": ("Mean time between a streamed reply's tokens.", lambda tokens: tokens.per_token),
    "cancel_seconds": ("From a client's leaving to the engine's being told.", lambda tokens: tokens.stop),
}


def token_metrics(series: Mapping[SeriesKey, TokensSnapshot]) -> Iterator[PrometheusFamily]:
    """The metrics of those series that have tokens."""
    for name, (text, count) in _COUNTERS.items():
        counter = prometheus_text.counter(f"pointsman_{name}", text, labels=LABELS)
        for key, tokens in series.items():
            counter.add(labels_of(key), count(tokens))
        yield counter
    for name, (text, value) in _HISTOGRAMS.items():
        histogram = PrometheusFamily(f"pointsman_{name}", text, "histogram", LABELS)
        for key, tokens in series.items():
            counts, total = value(tokens)
            histogram.add_histogram(labels_of(key), LATENCY_BOUNDS, counts, total)
        yield histogram


def labels_of(key: SeriesKey) -> list[str]:
    return [key.route, key.arm, key.engine, key.endpoint]
