"""What a model version has done, counted as Triton counts it: one function for each call that has ended.

Source: Triton core `src/infer_stats.cc`; the statistics extension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.errors import ErrorCode

# Why a request failed, as `nv_inference_request_failure` has it.
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


@dataclass(slots=True)
class Duration:
    """How often something was done, and how long it took all in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += max(0, ns)


@dataclass(slots=True)
class BatchDurations:
    """Executions of one batch size; all three have the same count."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ResponseDurations:
    """What became of the responses with one number in their streams (of decoupled models)."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)


class Statistics:
    """The counters of one model version. Durations are nanoseconds.

    `now_ns` is the clock of the calls, `now_ms` the wall clock: milliseconds since 1970.
    """

    def __init__(self, now_ns: Callable[[], int], now_ms: Callable[[], int], *, is_decoupled: bool = False) -> None:
        self._now_ns = now_ns
        self._now_ms = now_ms
        self._is_decoupled = is_decoupled
        self.last_inference_ms = 0
        self.inference_count = 0
        self.execution_count = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cache_hits = Duration()
        self.cache_misses = Duration()
        self._hits: set[InferenceCall] = set()  # answered from the cache, and about to end
        self.failures = dict.fromkeys(REASONS, 0)
        self.batches: dict[int, BatchDurations] = {}
        self.responses: dict[int, ResponseDurations] = {}
        self.num_responses = 0

    def __repr__(self) -> str:
        return (
            f"<Statistics: {self.success.count} succeeded, {self.fail.count} failed, {self.inference_count} inferences "
            f"in {self.execution_count} executions>"
        )

    def call_ended(self, call: InferenceCall) -> None:
        """Count a call. A decoupled model's answers may be errors: a request that it has taken has succeeded."""
        lasted = self._now_ns() - call.arrived_ns
        self.num_responses += call.num_responses
        if call.error is not None and not (self._is_decoupled and call.num_responses > 1):
            self.fail.add(lasted)
            self.failures[_reason(call)] += 1
            return
        if self._hits and call in self._hits:
            self._hits.remove(call)
            self.success.add(lasted)
            self.queue.add(0)
            return
        started = call.started_ns or call.arrived_ns
        self.inference_count += call.batch_size
        self.success.add(lasted)
        self.queue.add(started - call.arrived_ns)
        self.compute_input.add(call.compute_input_ns)
        self.compute_infer.add(call.compute_infer_ns)
        self.compute_output.add(call.compute_output_ns)

    def batch_ended(self, batch_size: int, call: InferenceCall) -> None:
        """Count an execution; `call` is one of its calls, and has the times of all."""
        self.last_inference_ms = self._now_ms()
        self.execution_count += 1
        durations = self.batches.get(batch_size)
        if durations is None:
            durations = self.batches[batch_size] = BatchDurations()
        durations.compute_input.add(call.compute_input_ns)
        durations.compute_infer.add(call.compute_infer_ns)
        durations.compute_output.add(call.compute_output_ns)

    def cache_hit(self, call: InferenceCall, looked_up_ns: int) -> None:
        """The response cache has the answer to a call, which ends now; looking took so long."""
        self.cache_hits.add(looked_up_ns)
        self._hits.add(call)

    def cache_miss(self, call: InferenceCall, took_ns: int) -> None:
        """Count a look in vain and the insertion that follows it: Triton adds them to the requests' time."""
        self.cache_misses.add(took_ns)
        self.success.ns += took_ns

    def response_sent(self, number: int, took_ns: int, *, is_error: bool, is_empty: bool) -> None:
        """Count the answer with this number in its stream; it took so long since the one before it."""
        durations = self.responses.get(number)
        if durations is None:
            durations = self.responses[number] = ResponseDurations()
        durations.compute_infer.add(took_ns)
        if is_error:
            durations.fail.add(took_ns)
        elif is_empty:
            durations.empty_response.add(took_ns)
        else:
            durations.compute_output.add(0)
            durations.success.add(took_ns)

    def write(self, made: Any) -> None:
        """Set the fields of a ModelStatistics message, all but name and version."""
        made.last_inference = self.last_inference_ms
        made.inference_count = self.inference_count
        made.execution_count = self.execution_count
        # Triton says each duration, also where nothing was done.
        for name, attribute in _INFER_STATS.items():
            duration: Duration = getattr(self, attribute)
            getattr(made.inference_stats, name).SetInParent()
            _write(duration, getattr(made.inference_stats, name))
        for size, batch in sorted(self.batches.items()):
            written = made.batch_stats.add(batch_size=size)
            for name in BatchDurations.__slots__:
                _write(getattr(batch, name), getattr(written, name))
        for number, response in sorted(self.responses.items()):
            entry = made.response_stats[str(number)]
            for name in ResponseDurations.__slots__:
                getattr(entry, name).SetInParent()
                _write(getattr(response, name), getattr(entry, name))


_INFER_STATS = {
    **{name: name for name in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")},
    "cache_hit": "cache_hits",
    "cache_miss": "cache_misses",
}


def _write(duration: Duration, made: Any) -> None:
    made.count, made.ns = duration.count, duration.ns


def _reason(call: InferenceCall) -> str:
    assert call.error is not None
    if call.error.code is ErrorCode.CANCELLED:
        return "CANCELED"
    if call.started_ns:
        return "BACKEND"
    return "REJECTED" if call.error.code is ErrorCode.UNAVAILABLE else "OTHER"
