"""Summaries of latencies: counts, sums, and quantiles of the last minute.

Values are kept with ten significant bits in five windows of twelve seconds, as prometheus-cpp rotates its own; a
quantile is within 0.2 % of the value at its rank.
Source: Triton core `src/metrics.cc`, `src/metric_model_reporter.cc`; prometheus-cpp `time_window_quantiles.cc`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import ceil, nan

from engines.host.model import HostedModel
from engines.host.statistics import Duration
from gateway.protocol.prometheus_text import MetricSample, PrometheusFamily

_WINDOW_NS = 12_000_000_000
_NUM_WINDOWS = 5
_SIGNIFICANT_BITS = 10

_PLAIN, _CACHED = "(includes cached requests)", "(does not include cached requests)"
# Name, help text, and the attribute of the statistics.
_SUMMARIES = (
    ("inference_request_summary_us", f"Summary of inference request duration in microseconds {_PLAIN}", "success"),
    ("inference_queue_summary_us", f"Summary of inference queuing duration in microseconds {_PLAIN}", "queue"),
    (
        "inference_compute_input_summary_us",
        f"Cumulative compute input duration in microseconds {_CACHED}",
        "compute_input",
    ),
    (
        "inference_compute_infer_summary_us",
        f"Cumulative compute inference duration in microseconds {_CACHED}",
        "compute_infer",
    ),
    (
        "inference_compute_output_summary_us",
        f"Cumulative inference compute output duration in microseconds {_CACHED}",
        "compute_output",
    ),
)
_CACHE_SUMMARIES = (
    (
        "cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        "cache_hits",
    ),
    (
        "cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        "cache_misses",
    ),
)


class SummarizedDuration(Duration):
    """A duration that keeps the values of the last minute."""

    __slots__ = ("_now_ns", "_windows")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        super().__init__()
        self._now_ns = now_ns
        # The number of each window and its counts by value, the oldest first.
        self._windows: deque[tuple[int, Counter[int]]] = deque(maxlen=_NUM_WINDOWS)

    def add(self, ns: int) -> None:
        super().add(ns)
        value = max(0, ns) // 1000
        surplus = value.bit_length() - _SIGNIFICANT_BITS
        if surplus > 0:
            value = value >> surplus << surplus
        number = self._now_ns() // _WINDOW_NS
        windows = self._windows
        if not windows or windows[-1][0] != number:
            windows.append((number, Counter()))
        windows[-1][1][value] += 1

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """The values in microseconds below which these shares of the last minute's are; NaN without any."""
        oldest = self._now_ns() // _WINDOW_NS - _NUM_WINDOWS
        counts: Counter[int] = Counter()
        for number, window in self._windows:
            if number > oldest:
                counts.update(window)
        values = sorted(counts)
        ranks = list(accumulate(counts[value] for value in values))
        if not ranks:
            return [nan] * len(shares)
        return [next(v for v, rank in zip(values, ranks, strict=True) if rank >= ceil(ranks[-1] * s)) for s in shares]


def summary_families(models: Iterable[HostedModel], quantiles: Sequence[float]) -> Iterator[PrometheusFamily]:
    """The summaries of these models, which have `SummarizedDuration`s. A cached model has no summary of requests, as in
    Triton."""
    served = sorted(models, key=lambda model: (model.name, int(model.version)))
    cached = [model for model in served if model.is_cached]
    for name, text, attribute in _SUMMARIES:
        shown = [model for model in served if not model.is_cached] if attribute == "success" else served
        yield _family(name, text, attribute, shown, quantiles)
    for name, text, attribute in _CACHE_SUMMARIES:
        yield _family(name, text, attribute, cached, quantiles)


def _family(
    name: str, text: str, attribute: str, models: Iterable[HostedModel], quantiles: Sequence[float]
) -> PrometheusFamily:
    samples: list[MetricSample] = []
    for model in models:
        labels, duration = model.metric_labels, getattr(model.statistics, attribute)
        samples += (
            MetricSample(duration.count, labels, "_count"),
            MetricSample(duration.ns // 1000, labels, "_sum"),
        )
        values = zip(quantiles, duration.quantiles(quantiles), strict=True)
        samples += [MetricSample(value, {**labels, "quantile": _label(share)}) for share, value in values]
    return PrometheusFamily(f"nv_{name}", text, "summary", samples=samples)


def _label(share: float) -> str:
    return repr(share).removesuffix(".0")
