"""The host's metrics, under Triton's names; what Triton has no name for begins with `pointsman_`.

Source: Triton core `src/metrics.cc`, `src/metric_model_reporter.cc`; Triton's metrics documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from engines.core.processes import memory_of_one
from engines.host.devices import DeviceMemory, device_memory, system_usage
from engines.host.prometheus_text import MetricSample, PrometheusFamily
from engines.host.statistics import Duration, Statistics
from engines.scheduling.cache import ResponseCache

if TYPE_CHECKING:
    from engines.host.model import HostedModel

Models = Callable[[], Iterable["HostedModel"]]

_COUNTERS: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda statistics: statistics.success.count,
    ),
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda statistics: statistics.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda statistics: statistics.execution_count,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda statistics: _us(statistics.success),
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda statistics: _us(statistics.queue),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda statistics: _us(statistics.compute_input),
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda statistics: _us(statistics.compute_infer),
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda statistics: _us(statistics.compute_output),
    ),
)

_CACHE_COUNTERS: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    (
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        lambda statistics: statistics.cache_hits.count,
    ),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda statistics: _us(statistics.cache_hits),
    ),
    (
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        lambda statistics: statistics.cache_misses.count,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda statistics: _us(statistics.cache_misses),
    ),
)


# Of the cache as a whole, as Triton's older metrics tell it.
_OF_THE_CACHE: tuple[tuple[str, str, Callable[[ResponseCache], float]], ...] = (
    ("nv_cache_num_lookups", "Number of cache lookups in the response cache", lambda cache: cache.num_lookups),
    ("nv_cache_num_hits", "Number of cache hits in the response cache", lambda cache: cache.num_hits),
    (
        "nv_cache_num_misses",
        "Number of cache misses in the response cache",
        lambda cache: cache.num_lookups - cache.num_hits,
    ),
    ("nv_cache_lookup_duration", "Total cache lookup duration, in microseconds", lambda cache: cache.lookup_ns // 1000),
    (
        "nv_cache_insertion_duration",
        "Total cache insertion duration, in microseconds",
        lambda cache: cache.insertion_ns // 1000,
    ),
)


def of_the_cache(cache: ResponseCache) -> Iterator[PrometheusFamily]:
    """What there is to tell of the response cache; its size where it is the host's own."""
    for name, told, value in _OF_THE_CACHE:
        yield PrometheusFamily(name, told, "gauge", (MetricSample(value(cache)),))
    usage = cache.usage
    if usage is None:
        return
    for name, told, number in (
        ("nv_cache_num_entries", "Number of responses stored in response cache", usage.num_entries),
        ("nv_cache_num_evictions", "Number of cache evictions in response cache", usage.num_evicted),
        ("nv_cache_util", "Cache utilization [0.0 - 1.0]", usage.share),
    ):
        yield PrometheusFamily(name, told, "gauge", (MetricSample(number),))


def families(models: Iterable[HostedModel]) -> Iterator[PrometheusFamily]:
    """What there is to tell now of models and machine."""
    served = sorted(models, key=lambda model: (model.name, int(model.version)))
    yield from (_counter(*counter, served) for counter in _COUNTERS[:1])
    yield PrometheusFamily(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        "counter",
        tuple(
            MetricSample(count, {**_labels(model), "reason": reason})
            for model in served
            for reason, count in model.statistics.failures.items()
        ),
    )
    yield from (_counter(*counter, served) for counter in _COUNTERS[1:])
    yield PrometheusFamily(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        "gauge",
        tuple(MetricSample(model.num_pending, _labels(model)) for model in served),
    )
    yield PrometheusFamily(
        "pointsman_requests_in_flight",
        "Requests that are waiting or running, per model",
        "gauge",
        tuple(MetricSample(model.num_in_flight, _labels(model)) for model in served),
    )
    cached = [model for model in served if model.is_cached]
    yield from (_counter(*counter, cached) for counter in _CACHE_COUNTERS)
    decoupled = [model for model in served if model.is_decoupled]
    # A decoupled text model sends a response a token, or nearly: their rate is the closest to tokens a second.
    yield _counter(
        "pointsman_stream_responses_total",
        "Responses sent by decoupled models; of a language model about one a token",
        lambda statistics: statistics.num_responses,
        decoupled,
    )
    yield PrometheusFamily(
        "pointsman_instance_memory_bytes",
        "Memory of the processes that run a model's instances, on a Mac with what they hold on the GPU, in bytes",
        "gauge",
        tuple(
            MetricSample(taken, {**_labels(model), "pid": str(pid)})
            for model in served
            for pid in model.pids()
            if (taken := memory_of_one(pid)) is not None
        ),
    )
    yield from _system()
    yield from _devices(device_memory())


def _counter(
    name: str, told: str, value: Callable[[Statistics], float], models: Iterable[HostedModel]
) -> PrometheusFamily:
    samples = tuple(MetricSample(value(model.statistics), _labels(model)) for model in models)
    return PrometheusFamily(name, told, "counter", samples)


def _system() -> Iterator[PrometheusFamily]:
    usage = system_usage()
    for name, told, value in (
        ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", usage.memory_total_bytes),
        ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", usage.memory_used_bytes),
        ("pointsman_host_memory_bytes", "Memory of the host's own process, in bytes", usage.process_bytes),
    ):
        if value is not None:
            yield PrometheusFamily(name, told, "gauge", (MetricSample(value),))


def _devices(devices: Iterable[DeviceMemory]) -> Iterator[PrometheusFamily]:
    found = list(devices)
    totals = tuple(MetricSample(device.total_bytes, {"gpu_uuid": device.uuid}) for device in found)
    used = tuple(MetricSample(device.used_bytes, {"gpu_uuid": device.uuid}) for device in found)
    yield PrometheusFamily("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "gauge", totals)
    yield PrometheusFamily("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "gauge", used)


def _labels(model: HostedModel) -> dict[str, str]:
    return {"model": model.name, "version": model.version, **model.metric_tags}


def _us(duration: Duration) -> int:
    return duration.ns // 1000
