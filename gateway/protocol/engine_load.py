"""What engines report of themselves: readiness, and load in Prometheus' text or in ORCA's reply header.

Sources: the metrics' names are those of vLLM (also before 0.10), SGLang, llama.cpp's server, TGI, trtllm-serve (its
/prometheus/metrics), Triton, Triton's TensorRT-LLM backend and our engine host. ORCA: xds.data.orca.v3 and gRPC's
proposal A51; the header's forms are Triton's and vLLM's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite
from typing import Any

import orjson


class Readiness(Enum):
    """Triton is not ready while any model of it loads, and for good once one has failed to load; its other models serve
    on. So a server that answers is never as far gone as one that does not."""

    READY = "ready"
    UNREADY = "unready"  # it answers, but says that it is not ready: used where nothing better is left
    DOWN = "down"  # it does not answer: never used

    @property
    def badness(self) -> int:
        """0 for the best condition, more for each worse one."""
        return _FROM_BEST_TO_WORST.index(self)


_FROM_BEST_TO_WORST = tuple(Readiness)


@dataclass(frozen=True, slots=True)
class Load:
    """The current work of one server, from all its clients."""

    running: int = 0  # requests
    waiting: int = 0  # requests that it has taken and not begun
    kv_use: float | None = None  # share of the memory for keys and values that is taken; None where nothing tells
    adapters: frozenset[str] = frozenset()  # LoRA adapters of running and waiting requests: they are, or get, loaded

    @property
    def outstanding(self) -> int:
        return self.running + self.waiting


_RUNNING, _WAITING, _KV_USE, _BOTH = "running", "waiting", "kv_use", "both"
_METRICS = {
    b"vllm:num_requests_running": _RUNNING,
    b"vllm:num_requests_waiting": _WAITING,
    b"vllm:kv_cache_usage_perc": _KV_USE,  # a share of 1, despite the name
    b"vllm:gpu_cache_usage_perc": _KV_USE,
    b"sglang:num_running_reqs": _RUNNING,
    b"sglang:num_queue_reqs": _WAITING,
    b"sglang:token_usage": _KV_USE,
    b"llamacpp:requests_processing": _RUNNING,
    b"llamacpp:requests_deferred": _WAITING,
    b"llamacpp:kv_cache_usage_ratio": _KV_USE,
    b"tgi_batch_current_size": _RUNNING,
    b"tgi_queue_size": _WAITING,
    b"trtllm_num_requests_running": _RUNNING,
    b"trtllm_num_requests_waiting": _WAITING,
    b"trtllm_kv_cache_utilization": _KV_USE,
    b"nv_inference_pending_request_count": _WAITING,
    b"pointsman_requests_in_flight": _BOTH,  # our host, beside Triton's pending count
}
# Metrics of which one label says what a sample counts.
_METRICS_BY_LABEL = {
    b"nv_trt_llm_request_metrics": {b'request_type="scheduled"': _RUNNING, b'request_type="waiting"': _WAITING},
    b"nv_trt_llm_kv_cache_block_metrics": {b'kv_cache_block_type="fraction"': _KV_USE},
}
_METRIC_NAMES = (*_METRICS, *_METRICS_BY_LABEL)
_ADAPTERS = b"vllm:lora_requests_info"
_ADAPTER_LABELS = re.compile(rb'[{,](?:running|waiting)_lora_adapters="([^"\\]*)"')
_MAX_ADAPTERS, _MAX_ADAPTER_NAME = 256, 256
_ENERGY = "energy_joules"
_ENERGY_NAMES = (f"request_cost.{_ENERGY}", f"named_metrics.{_ENERGY}", _ENERGY)  # by ORCA; where others put it
_ORCA_NAMES = {
    "num_requests_running": _RUNNING,
    "num_running_reqs": _RUNNING,
    "num_requests_waiting": _WAITING,
    "num_queue_reqs": _WAITING,
    "kv_cache_usage_perc": _KV_USE,
    "kv_cache_utilization": _KV_USE,
    "gpu_cache_usage_perc": _KV_USE,
}


def read_metrics(text: bytes) -> Load | None:
    """The load in a server's metrics, requests summed over all label sets (models, ranks); None where none is told.
    Lines that are not understood are passed over. Source: Prometheus' text format 0.0.4."""
    load = _load(_samples(text))
    return load if load is None or _ADAPTERS not in text else replace(load, adapters=_adapters(text))


def read_orca(value: bytes) -> Load | None:
    """The load in an `endpoint-load-metrics` field, as `TEXT a=1, named_metrics.b=2` or as `JSON {...}`; None where it
    tells nothing of requests or memory."""
    return _load(
        (what, number)
        for name, reported in _orca_values(value).items()
        if (what := _ORCA_NAMES.get(name.removeprefix("named_metrics."))) is not None
        and (number := _number(reported)) is not None
    )


def read_energy(value: bytes) -> float | None:
    """The joules that a reply has cost, in an `endpoint-load-metrics` field: `energy_joules` of ORCA's request_cost, or
    of its named metrics; None where it tells none."""
    if _ENERGY.encode() not in value:
        return None
    values = _orca_values(value)
    numbers = [_number(values.get(name)) for name in _ENERGY_NAMES]
    return next((number for number in numbers if number is not None), None)


def _orca_values(value: bytes) -> dict[str, Any]:
    """By name; those of a part as `named_metrics.b`."""
    text = value.decode("latin-1").strip()
    form, _, rest = text.partition(" ")
    if form.rstrip(":").upper() in ("TEXT", "JSON"):
        text = rest.strip()
    if not text.startswith("{"):
        return {name.strip(): number for name, _, number in (pair.partition("=") for pair in text.split(","))}
    try:
        report = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    values: dict[str, Any] = {}
    for name, reported in report.items():
        is_part = isinstance(reported, Mapping)
        values |= {f"{name}.{key}": number for key, number in reported.items()} if is_part else {name: reported}
    return values


def _load(found: Iterable[tuple[str, float]]) -> Load | None:
    counts = {_RUNNING: 0.0, _WAITING: 0.0, _BOTH: 0.0}
    shares: list[float] = []
    is_reported = False
    for what, number in found:
        is_reported = True
        if what == _KV_USE:
            shares.append(number)
        else:
            counts[what] += number
    if not is_reported:
        return None
    running = counts[_RUNNING] or max(0.0, counts[_BOTH] - counts[_WAITING])
    return Load(int(running), int(counts[_WAITING]), sum(shares) / len(shares) if shares else None)


def _samples(text: bytes) -> Iterator[tuple[str, float]]:
    for line in text.split(b"\n"):
        if line.startswith(_METRIC_NAMES):
            labels = line.rfind(b"}")  # a label's value may have one too, what stands behind the labels has none
            head, parts = line.partition(b"{")[0].split(), line[labels + 1 :].split()
            what = _METRICS.get(head[0]) or _by_label(_METRICS_BY_LABEL.get(head[0], {}), line)
            number = _number(next(iter(parts[0 if labels >= 0 else 1 :]), None))
            if what is not None and number is not None:
                yield what, number


def _adapters(text: bytes) -> frozenset[str]:
    """Those of the latest sample of vLLM's gauge, whose value is its time, and whose labels are its value."""
    latest, labels = -1.0, b""
    for line in text.split(b"\n"):
        if line.startswith(_ADAPTERS + b"{"):
            before, _, behind = line.rpartition(b"}")
            at = _number(next(iter(behind.split()), None))
            if at is not None and at >= latest:
                latest, labels = at, before
    names = [
        name for found in _ADAPTER_LABELS.finditer(labels) for name in found[1].decode("utf-8", "replace").split(",")
    ]
    return frozenset(name.strip() for name in names[:_MAX_ADAPTERS] if 0 < len(name) <= _MAX_ADAPTER_NAME)


def _by_label(kinds: Mapping[bytes, str], line: bytes) -> str | None:
    return next((what for label, what in kinds.items() if label in line), None)


def _number(value: Any) -> float | None:
    """The value as a number that can be reckoned with; None where it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) and number >= 0 else None
