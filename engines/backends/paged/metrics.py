"""The engine's statistics as metrics of the host, under vLLM's names, which gateways and dashboards use.

Source: vLLM, "Production metrics" (`vllm/v1/metrics/loggers.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from engines.paged.generation.statistics import EngineStatistics
from gateway.protocol.prometheus_text import Histogram

_log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.25

# The engine's statistic -> metric, help, kind.
_NUMBERS: dict[str, tuple[str, str, str]] = {
    "num_requests_running": ("vllm:num_requests_running", "Requests that are being generated", "gauge"),
    "num_requests_waiting": ("vllm:num_requests_waiting", "Requests that wait for the engine", "gauge"),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "Share of the cache's blocks that is in use, 1 is all", "gauge"),
    "kv_cache_blocks_used": ("pointsman_llm_kv_blocks_used", "Blocks of the cache that are in use", "gauge"),
    "kv_cache_blocks": ("pointsman_llm_kv_blocks", "Blocks of the cache", "gauge"),
    "prompt_tokens_total": ("vllm:prompt_tokens_total", "Tokens of prompts, cached ones too", "counter"),
    "generation_tokens_total": ("vllm:generation_tokens_total", "Tokens generated", "counter"),
    "prefix_cache_queries_total": ("vllm:prefix_cache_queries_total", "Tokens looked up in the cache", "counter"),
    "prefill_tokens_total": (
        "pointsman_llm_prefill_tokens_total",
        "Tokens of prompts that were computed: neither cached nor stored",
        "counter",
    ),
    "prefix_cache_hits_total": ("vllm:prefix_cache_hits_total", "Tokens that were in the cache", "counter"),
    "num_preemptions_total": ("vllm:num_preemptions_total", "Requests whose blocks others needed", "counter"),
    "spec_decode_num_draft_tokens_total": (
        "vllm:spec_decode_num_draft_tokens_total",
        "Tokens guessed by speculation",
        "counter",
    ),
    "spec_decode_num_accepted_tokens_total": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "Tokens guessed right",
        "counter",
    ),
    "steps_total": ("pointsman_llm_steps_total", "Steps of the engine", "counter"),
    "rows_total": ("pointsman_llm_rows_total", "Tokens computed, over all steps", "counter"),
}
_VALUES = "pointsman_llm_kv_store_values"
# With a store of blocks.
_STORE_NUMBERS: dict[str, tuple[str, str, str]] = {
    "num_requests_fetching": ("pointsman_llm_requests_fetching", "Requests that wait for stored blocks", "gauge"),
    "kv_store_queries_total": ("vllm:external_prefix_cache_queries_total", "Tokens looked up in the store", "counter"),
    "kv_store_hits_total": ("vllm:external_prefix_cache_hits_total", "Tokens that were loaded from it", "counter"),
    "kv_store_declined_total": (
        "pointsman_llm_kv_store_declined_tokens_total",
        "Tokens not looked up, as computing them is faster",
        "counter",
    ),
    "kv_store_given_up_total": (
        "pointsman_llm_kv_store_given_up_total",
        "Fetches that were not through by their deadline",
        "counter",
    ),
    "kv_store_saved_seconds_total": (
        "pointsman_llm_kv_store_saved_seconds_total",
        "Seconds of prefill that loaded tokens would have taken",
        "counter",
    ),
    "kv_store_paused": ("pointsman_llm_kv_store_paused", "1 while Redis is left alone, after failures", "gauge"),
    "kv_store_values_read_p50_seconds": (f"{_VALUES}_read_p50_seconds", "Of the last reads, the median", "gauge"),
    "kv_store_values_read_p99_seconds": (f"{_VALUES}_read_p99_seconds", "Of the last reads, the slowest", "gauge"),
    **{
        f"kv_store_values_{name}_total": (f"{_VALUES}_{name}_total", help, "counter")
        for name, help in (
            ("hits", "Values that were read"),
            ("misses", "Values that were asked for and not there"),
            ("bytes_in", "Bytes read"),
            ("bytes_out", "Bytes written"),
            ("written", "Values written"),
            ("known", "Values not written, as they were there"),
            ("dropped", "Values not written, as too many waited or the store was away"),
            ("refused", "Values that Redis refused: no memory, no right"),
            ("corrupt", "Values that were not what was written, and deleted"),
            ("foreign", "Values that are sealed with another secret"),
            ("failures", "Calls that Redis did not answer in time, or at all"),
            ("skipped", "Calls that were not made while Redis is left alone"),
        )
    },
}
_OUTCOMES = {
    "requests_finished_total": "finished",
    "requests_failed_total": "failed",
    "requests_cancelled_total": "cancelled",
    "requests_expired_total": "expired",
}
_REQUESTS = ("pointsman_llm_requests_total", "Requests that have ended, by how", "counter")
# The engine's statistic -> metric, help.
_HISTOGRAMS = {
    "first_token": ("vllm:time_to_first_token_seconds", "Seconds from a request to its first token"),
    "next_token": ("vllm:inter_token_latency_seconds", "Seconds between a request's tokens"),
    "step": ("pointsman_llm_step_seconds", "Seconds of a step"),
}


class HostInterface(Protocol):
    """An instance's access to the host."""

    def control(self, operation: str, *arguments: Any) -> Any: ...

    def measure(self, operation: str, metric: int, value: Any) -> None: ...


class MeasuredEngine(Protocol):
    """An engine."""

    @property
    def statistics(self) -> EngineStatistics: ...

    def stats(self) -> dict[str, float]: ...


class EngineMetrics:
    """Reports changes to the host several times a second, on a thread of its own."""

    def __init__(self, host: HostInterface, engine: MeasuredEngine, labels: Mapping[str, str]) -> None:
        """Raises: EngineError where a metric of such a name has another kind."""
        self._host = host
        self._engine = engine
        self._labels = dict(labels)
        known = _NUMBERS | (_STORE_NUMBERS if "kv_store_queries_total" in engine.stats() else {})
        self._numbers = {key: (self._metric(*named), named[2]) for key, named in known.items()}
        self._numbers |= {
            key: (self._metric(*_REQUESTS, outcome=outcome), _REQUESTS[2]) for key, outcome in _OUTCOMES.items()
        }
        self._histograms = {
            key: self._metric(name, help, "histogram", getattr(engine.statistics, key).bounds)
            for key, (name, help) in _HISTOGRAMS.items()
        }
        self._reported: dict[str, float] = {}
        self._merged: dict[str, tuple[list[int], float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meters", daemon=True)

    def start(self) -> None:
        self.report()
        self._thread.start()

    def stop(self) -> None:
        """Report the last changes, and end."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def report(self) -> None:
        """Report what has changed since the last time."""
        numbers = self._engine.stats()
        for key, (metric, kind) in self._numbers.items():
            value, before = numbers.get(key, 0.0), self._reported.get(key)
            if value != before:
                self._reported[key] = value
                is_counter = kind == "counter"
                self._host.measure(
                    "increment" if is_counter else "set",
                    metric,
                    float(value - (before or 0.0) if is_counter else value),
                )
        for key, metric in self._histograms.items():
            self._merge(key, metric, getattr(self._engine.statistics, key))

    def _merge(self, key: str, metric: int, histogram: Histogram) -> None:
        counts, total = list(histogram.counts), histogram.sum
        before, total_before = self._merged.get(key, ([0] * len(counts), 0.0))
        new = tuple(now - then for now, then in zip(counts, before, strict=True))
        if any(new):
            self._merged[key] = (counts, total)
            self._host.measure("merge", metric, (new, total - total_before))

    def _metric(self, name: str, help: str, kind: str, bounds: tuple[float, ...] | None = None, **labels: str) -> int:
        family = self._host.control("family", name, help, kind)
        number: int = self._host.control("metric", family, self._labels | labels, bounds)
        return number

    def _run(self) -> None:
        try:
            while not self._is_over.wait(INTERVAL_SECONDS):
                self.report()
            self.report()
        except Exception:  # the host has ended, and this process ends soon
            _log.exception("the metrics of %s are no longer reported", self._labels)
