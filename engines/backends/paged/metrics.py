"""The engine's statistics as metrics of the host, under vLLM's names, which gateways and dashboards use.

Source: vLLM, "Production metrics" (`vllm/v1/metrics/loggers.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engines.ipc.host_connection import HostClient
from gateway.protocol.prometheus_text import Histogram

if TYPE_CHECKING:
    from engines.paged.engine import PagedEngine

_log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.25

# The engine's statistic -> metric, help. Statistics that end in `_total` are counters, the others gauges.
_STATISTICS = {
    "num_requests_running": ("vllm:num_requests_running", "Requests that are being generated"),
    "num_requests_waiting": ("vllm:num_requests_waiting", "Requests that wait for the engine"),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "Share of the cache's blocks that is in use, 1 is all"),
    "kv_cache_blocks_used": ("pointsman_llm_kv_blocks_used", "Blocks of the cache that are in use"),
    "kv_cache_blocks": ("pointsman_llm_kv_blocks", "Blocks of the cache"),
    "prompt_tokens_total": ("vllm:prompt_tokens_total", "Tokens of prompts, cached ones too"),
    "generation_tokens_total": ("vllm:generation_tokens_total", "Tokens generated"),
    "prefix_cache_queries_total": ("vllm:prefix_cache_queries_total", "Tokens looked up in the cache"),
    "prefill_tokens_total": (
        "pointsman_llm_prefill_tokens_total",
        "Tokens of prompts that were computed: neither cached nor stored",
    ),
    "prefix_cache_hits_total": ("vllm:prefix_cache_hits_total", "Tokens that were in the cache"),
    "num_preemptions_total": ("vllm:num_preemptions_total", "Requests whose blocks others needed"),
    "spec_decode_num_draft_tokens_total": ("vllm:spec_decode_num_draft_tokens_total", "Tokens guessed by speculation"),
    "spec_decode_num_accepted_tokens_total": ("vllm:spec_decode_num_accepted_tokens_total", "Tokens guessed right"),
    "steps_total": ("pointsman_llm_steps_total", "Steps of the engine"),
    "rows_total": ("pointsman_llm_rows_total", "Tokens computed, over all steps"),
}
_STORE, _VALUES = "pointsman_llm_kv_store", "kv_store_values"
# With a store of blocks.
_STORE_STATISTICS = {
    "num_requests_fetching": ("pointsman_llm_requests_fetching", "Requests that wait for stored blocks"),
    "kv_store_queries_total": ("vllm:external_prefix_cache_queries_total", "Tokens looked up in the store"),
    "kv_store_hits_total": ("vllm:external_prefix_cache_hits_total", "Tokens that were loaded from it"),
    "kv_store_declined_total": (f"{_STORE}_declined_tokens_total", "Tokens not looked up, as computing them is faster"),
    "kv_store_given_up_total": (f"{_STORE}_given_up_total", "Fetches that were not through by their deadline"),
    "kv_store_saved_seconds_total": (
        f"{_STORE}_saved_seconds_total",
        "Seconds of prefill that loaded tokens would have taken",
    ),
    "kv_store_paused": (f"{_STORE}_paused", "1 while Redis is left alone, after failures"),
    f"{_VALUES}_read_p50_seconds": (f"{_STORE}_values_read_p50_seconds", "Of the last reads, the median"),
    f"{_VALUES}_read_p99_seconds": (f"{_STORE}_values_read_p99_seconds", "Of the last reads, the slowest"),
    **{
        f"{_VALUES}_{name}_total": (f"{_STORE}_values_{name}_total", help)
        for name, help in (
            ("hits", "Values that were read"),
            ("misses", "Values that were requested and missing"),
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
_REQUESTS = ("pointsman_llm_requests_total", "Requests that have ended, by how")
# The engine's statistic -> metric, help.
_HISTOGRAMS = {
    "first_token": ("vllm:time_to_first_token_seconds", "Seconds from a request to its first token"),
    "next_token": ("vllm:inter_token_latency_seconds", "Seconds between a request's tokens"),
    "step": ("pointsman_llm_step_seconds", "Seconds of a step"),
}


class EngineMetrics:
    """Reports changes to the host several times a second, on a thread of its own."""

    def __init__(self, host: HostClient, engine: PagedEngine, labels: Mapping[str, str]) -> None:
        """Raises: EngineError where a metric of such a name has another kind."""
        self._host = host
        self._engine = engine
        self._labels = dict(labels)
        table = _STATISTICS | (_STORE_STATISTICS if "kv_store_queries_total" in engine.stats() else {})
        self._metrics = {key: self._metric(*row, _kind(key)) for key, row in table.items()}
        self._metrics |= {
            key: self._metric(*_REQUESTS, "counter", outcome=outcome) for key, outcome in _OUTCOMES.items()
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
        statistics = self._engine.stats()
        for key, metric in self._metrics.items():
            value, before = statistics.get(key, 0.0), self._reported.get(key)
            if value != before:
                self._reported[key] = value
                if _kind(key) == "counter":
                    self._host.measure("increment", metric, float(value - (before or 0.0)))
                else:
                    self._host.measure("set", metric, float(value))
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


def _kind(statistic: str) -> str:
    return "counter" if statistic.endswith("_total") else "gauge"
