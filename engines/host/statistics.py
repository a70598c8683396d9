"""The statistics of a model version, counted as Triton counts them.

Source: Triton core `src/infer_stats.cc`; the statistics extension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.errors import ErrorCode
from engines.scheduling.interfaces import Instance

# The reasons of a failure in `nv_inference_request_failure`.
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


@dataclass(slots=True)
class Duration:
    """A number of events and their total duration."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += max(0, ns)


Durations = dict[str, Duration]

_BATCH_FIELDS = ("compute_input", "compute_infer", "compute_output")
_RESPONSE_FIELDS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


class Statistics:
    """The counters of one model version. Durations are nanoseconds.

    `now_ns` is the clock of the calls, `now_ms` the wall clock: milliseconds since 1970. `duration` makes the durations
    of the metrics.
    """

    def __init__(
        self,
        now_ns: Callable[[], int],
        now_ms: Callable[[], int],
        *,
        is_decoupled: bool = False,
        duration: Callable[[], Duration] = Duration,
    ) -> None:
        self._now_ns = now_ns
        self._now_ms = now_ms
        self._is_decoupled = is_decoupled
        self.last_inference_ms = 0
        self.inference_count = 0
        self.execution_count = 0
        self.success = duration()
        self.fail = Duration()
        self.queue = duration()
        self.compute_input = duration()
        self.compute_infer = duration()
        self.compute_output = duration()
        self.cache_hits = duration()
        self.cache_misses = duration()
        self._hits: set[InferenceCall] = set()  # answered from the cache, not ended yet
        self.failures = dict.fromkeys(REASONS, 0)
        self.batches: dict[int, Durations] = {}  # by batch size
        self.responses: dict[int, Durations] = {}  # of decoupled models, by their index in their streams
        self.num_responses = 0

    def call_ended(self, call: InferenceCall) -> None:
        """Count a call. A decoupled model's responses may be errors: the request still succeeded."""
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
        """Count an execution; `call` is one of its calls, which share their times."""
        self.last_inference_ms = self._now_ms()
        self.execution_count += 1
        durations = self.batches.get(batch_size)
        if durations is None:
            durations = self.batches[batch_size] = {name: Duration() for name in _BATCH_FIELDS}
        durations["compute_input"].add(call.compute_input_ns)
        durations["compute_infer"].add(call.compute_infer_ns)
        durations["compute_output"].add(call.compute_output_ns)

    def cache_hit(self, call: InferenceCall, looked_up_ns: int) -> None:
        """Count a hit of the response cache, for a call that ends now."""
        self.cache_hits.add(looked_up_ns)
        self._hits.add(call)

    def cache_miss(self, call: InferenceCall, took_ns: int) -> None:
        """Count a miss and the insertion after it: Triton adds both to the requests' time."""
        self.cache_misses.add(took_ns)
        self.success.ns += took_ns

    def response_sent(self, number: int, took_ns: int, *, is_error: bool, is_empty: bool) -> None:
        """Count a response by its index in the stream; `took_ns` since the response before it."""
        durations = self.responses.get(number)
        if durations is None:
            durations = self.responses[number] = {name: Duration() for name in _RESPONSE_FIELDS}
        durations["compute_infer"].add(took_ns)
        if not is_error and not is_empty:
            durations["compute_output"].add(0)
        durations["fail" if is_error else "empty_response" if is_empty else "success"].add(took_ns)

    def write(self, target: Any) -> None:
        """Set all fields of a ModelStatistics message but name and version."""
        target.last_inference = self.last_inference_ms
        target.inference_count = self.inference_count
        target.execution_count = self.execution_count
        # Triton writes each duration, zero ones too.
        _write({name: getattr(self, attribute) for name, attribute in _INFER_STATS.items()}, target.inference_stats)
        for size, batch in sorted(self.batches.items()):
            _write(batch, target.batch_stats.add(batch_size=size))
        for number, response in sorted(self.responses.items()):
            _write(response, target.response_stats[str(number)])


_INFER_STATS = {
    **{name: name for name in ("success", "fail", "queue", *_BATCH_FIELDS)},
    "cache_hit": "cache_hits",
    "cache_miss": "cache_misses",
}


def _write(durations: Durations, target: Any) -> None:
    for name, duration in durations.items():
        written = getattr(target, name)
        written.SetInParent()
        written.count, written.ns = duration.count, duration.ns


def _reason(call: InferenceCall) -> str:
    assert call.error is not None
    if call.error.code is ErrorCode.CANCELLED:
        return "CANCELED"
    if call.started_ns:
        return "BACKEND"
    return "REJECTED" if call.error.code is ErrorCode.UNAVAILABLE else "OTHER"


class CountedInstance:
    """An instance that counts its executions, for its scheduler."""

    def __init__(self, inner: Instance, statistics: Statistics) -> None:
        self._inner = inner
        self._statistics = statistics

    def __getattr__(self, name: str) -> Any:
        """Attributes beyond the interface, such as `forget`."""
        return getattr(self._inner, name)

    @property
    def device_id(self) -> int:
        """The device whose resources the rate limiter counts."""
        plan = getattr(self._inner, "plan", None)
        return 0 if plan is None else int(plan.device_id)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def is_available(self) -> bool:
        return self._inner.is_available

    def execute(self, calls: Sequence[InferenceCall], done: Callable[[], None]) -> None:
        first = calls[0]
        batch_size = first.batch_size if len(calls) == 1 else sum([call.batch_size for call in calls])

        def executed() -> None:
            self._statistics.batch_ended(batch_size, first)
            done()

        self._inner.execute(calls, executed)
