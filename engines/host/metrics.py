"""The host's metrics, under Triton's names; other names begin with `pointsman_`.

Source: Triton core `src/metrics.cc`, `src/metric_model_reporter.cc`; Triton's metrics documentation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from engines.core.processes import memory_of_one
from engines.host.exchange import Application, Exchange
from engines.host.metrics_config import MetricsConfig
from engines.host.model import HostedModel
from engines.host.statistics import Duration
from engines.host.summaries import summary_families
from engines.scheduling.cache import ResponseCache
from gateway.protocol import prometheus_text
from gateway.protocol.prometheus_text import MetricSample, PrometheusFamily

# Name, help text, and the attribute of the statistics: a number, or a Duration as its microseconds or its count.
Counter = tuple[str, str, str]

_COUNTERS: tuple[Counter, ...] = (
    ("inference_request_success", "Number of successful inference requests, all batch sizes", "success"),
    ("inference_count", "Number of inferences performed (does not include cached requests)", "inference_count"),
    (
        "inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        "execution_count",
    ),
)
_LATENCY_COUNTERS: tuple[Counter, ...] = tuple(
    (f"inference_{name}_duration_us", f"Cumulative {text} duration in microseconds ({cached})", attribute)
    for name, text, cached, attribute in (
        ("request", "inference request", "includes cached requests", "success"),
        ("queue", "inference queuing", "includes cached requests", "queue"),
        ("compute_input", "compute input", "does not include cached requests", "compute_input"),
        ("compute_infer", "compute inference", "does not include cached requests", "compute_infer"),
        ("compute_output", "inference compute output", "does not include cached requests", "compute_output"),
    )
)
_CACHE_COUNTERS: tuple[Counter, ...] = (
    ("cache_num_hits_per_model", "Number of cache hits per model", "cache_hits"),
    ("cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds", "cache_hits"),
    ("cache_num_misses_per_model", "Number of cache misses per model", "cache_misses"),
    (
        "cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        "cache_misses",
    ),
)


def cache_families(cache: ResponseCache) -> Iterator[PrometheusFamily]:
    """The response cache as a whole, as Triton's older metrics have it; its size where it is the host's own."""
    figures: list[tuple[str, str, float]] = [
        ("num_lookups", "Number of cache lookups in the response cache", cache.num_lookups),
        ("num_hits", "Number of cache hits in the response cache", cache.num_hits),
        ("num_misses", "Number of cache misses in the response cache", cache.num_lookups - cache.num_hits),
        ("lookup_duration", "Total cache lookup duration, in microseconds", cache.lookup_ns // 1000),
        ("insertion_duration", "Total cache insertion duration, in microseconds", cache.insertion_ns // 1000),
    ]
    if (usage := cache.store.usage) is not None:
        figures += [
            ("num_entries", "Number of responses stored in response cache", usage.num_entries),
            ("num_evictions", "Number of cache evictions in response cache", usage.num_evicted),
            ("util", "Cache utilization [0.0 - 1.0]", usage.share),
        ]
    for name, text, value in figures:
        yield _gauge(f"nv_cache_{name}", text, [MetricSample(value)])


def families(models: Iterable[HostedModel], config: MetricsConfig | None = None) -> Iterator[PrometheusFamily]:
    """The metrics of models and machine, as of now."""
    config = config or MetricsConfig()
    served = sorted(models, key=lambda model: (model.name, int(model.version)))
    yield _counter(_COUNTERS[0], served)
    yield PrometheusFamily(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        "counter",
        samples=[
            MetricSample(count, {**model.metric_labels, "reason": reason})
            for model in served
            for reason, count in model.statistics.failures.items()
        ],
    )
    for counter in (*_COUNTERS[1:], *(_LATENCY_COUNTERS if config.counter_latencies else ())):
        yield _counter(counter, served)
    yield _gauge(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        [MetricSample(model.num_pending, model.metric_labels) for model in served],
    )
    yield _gauge(
        "pointsman_requests_in_flight",
        "Requests that are waiting or running, per model",
        [MetricSample(model.num_in_flight, model.metric_labels) for model in served],
    )
    for counter in _CACHE_COUNTERS if config.counter_latencies else ():
        yield _counter(counter, [model for model in served if model.is_cached])
    if config.summary_latencies:
        yield from summary_families(served, config.quantiles)
    # A decoupled text model sends a response a token, or nearly: their rate is the closest to tokens a second.
    yield PrometheusFamily(
        "pointsman_stream_responses_total",
        "Responses sent by decoupled models; of a language model about one a token",
        "counter",
        samples=[
            MetricSample(model.statistics.num_responses, model.metric_labels) for model in served if model.is_decoupled
        ],
    )
    yield _gauge(
        "pointsman_instance_memory_bytes",
        "Memory of the processes that run a model's instances, on a Mac with what they hold on the GPU, in bytes",
        [
            MetricSample(size, {**model.metric_labels, "pid": str(pid)})
            for model in served
            for pid in model.pids()
            if (size := memory_of_one(pid)) is not None
        ],
    )
    yield from _machine()
    # Pinned memory speeds up copies to GPUs, which the host leaves to the models' frameworks.
    for name, size in (("total", config.pinned_pool_bytes), ("used", 0)):
        text = f"Pinned memory pool {name} memory size, in bytes"
        yield _gauge(f"nv_pinned_memory_pool_{name}_bytes", text, [MetricSample(size)])


def _machine() -> Iterator[PrometheusFamily]:
    total, used = _machine_memory()
    for name, text, value in (
        ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", _cpu_utilization()),
        ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total),
        ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", used),
        ("pointsman_host_memory_bytes", "Memory of the host's own process, in bytes", memory_of_one(os.getpid())),
    ):
        if value is not None:
            yield _gauge(name, text, [MetricSample(value)])
    gpus = list(_gpu_memory())
    for name in ("total", "used"):
        samples = [MetricSample(int(getattr(memory, name)), {"gpu_uuid": uuid}) for uuid, memory in gpus]
        yield _gauge(f"nv_gpu_memory_{name}_bytes", f"GPU {name} memory, in bytes", samples)


def _cpu_utilization() -> float | None:
    """The share of the machine's processor time that was used since the last call; None where the platform does not
    report it."""
    global _cpu_times
    with suppress(OSError, ValueError, IndexError):
        times = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        total, idle = sum(times), times[3] + times[4]
        (before, idle_before), _cpu_times = _cpu_times, (total, idle)
        return 1 - (idle - idle_before) / max(1, total - before)
    return None


_cpu_times = (0, 0)  # in total, and idle, at the last call


def _machine_memory() -> tuple[int | None, int | None]:
    """Bytes of the machine's memory, and those in use; None where the platform does not report them."""
    with suppress(OSError, KeyError, IndexError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = {line.partition(":")[0]: line.split() for line in lines}
        total, available = (int(fields[name][1]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return total, total - available
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), None
    return None, None


def _gpu_memory() -> Iterator[tuple[str, Any]]:
    """The memory of each NVIDIA GPU by its UUID, read without loading a framework; none without NVML."""
    nvml = _nvml()
    if nvml is None:
        return
    with suppress(nvml.NVMLError):
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(device)
            yield uuid.decode() if isinstance(uuid, bytes) else uuid, nvml.nvmlDeviceGetMemoryInfo(device)


@cache
def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _counter(counter: Counter, models: Iterable[HostedModel]) -> PrometheusFamily:
    name, text, attribute = counter
    samples = []
    for model in models:
        value: int | Duration = getattr(model.statistics, attribute)
        if isinstance(value, Duration):
            value = value.ns // 1000 if "_duration" in name else value.count
        samples.append(MetricSample(value, model.metric_labels))
    return PrometheusFamily(f"nv_{name}", text, "counter", samples=samples)


def _gauge(name: str, text: str, samples: list[MetricSample]) -> PrometheusFamily:
    return PrometheusFamily(name, text, "gauge", samples=samples)


def metrics_app(families: Callable[[], Iterable[PrometheusFamily]]) -> Application:
    """The metrics port: `GET /metrics`; other paths are empty, as Triton's are."""

    async def answer(exchange: Exchange) -> None:
        status, body = 200, b""
        if exchange.method not in ("GET", "HEAD"):
            status, body = 405, b'{"error":"Method Not Allowed"}'
        elif exchange.path in ("/metrics", "/metrics/"):
            body = prometheus_text.write(family for family in families() if family.samples)
        await exchange.reply(status, body, (b"content-type", prometheus_text.CONTENT_TYPE.encode()))

    return answer
