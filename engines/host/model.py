"""A loaded version of a model: the path of its requests between a front and its instances.

Source of `Reshape`: Triton core `src/infer_request.cc` Normalize, `src/infer_response.cc` Output::Reshape; the
configuration's `ModelTensorReshape`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engines.core.calls import InferenceCall, Sink
from engines.core.errors import EngineError, unavailable
from engines.core.messages import InferResponse, TensorData
from engines.host.request_validation import RequestCheck
from engines.host.statistics import Statistics
from engines.host.tracing import PARENT, Trace, Tracer, TraceSampler
from engines.repository.states import ModelSpec
from engines.scheduling.interfaces import RequestScheduler


@dataclass(frozen=True, slots=True)
class Reshape:
    """From one shape of a tensor to another; both without the batch axis, -1 for any size."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    has_batches: bool

    def __call__(self, tensor: TensorData) -> TensorData:
        shape = tensor.shape
        batch, dims = (shape[:1], shape[1:]) if self.has_batches else ((), shape)
        if len(dims) != len(self.before):
            return tensor  # the model's output does not fit its configuration
        sizes = iter([size for size, expected in zip(dims, self.before, strict=True) if expected == -1])
        return replace(tensor, shape=(*batch, *(next(sizes) if size == -1 else size for size in self.after)))


def _reshaped(reshapes: Mapping[str, Reshape], tensors: Sequence[TensorData]) -> tuple[TensorData, ...]:
    return tuple(reshapes[tensor.name](tensor) if tensor.name in reshapes else tensor for tensor in tensors)


# Takes a response, and returns the one to pass on.
Interceptor = Callable[[InferResponse], InferResponse]


def _intercepted(sink: Sink, interceptors: Sequence[Interceptor]) -> Sink:
    """A sink that passes responses through the interceptors, in order."""

    def answered(response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            for interceptor in interceptors:
                response = interceptor(response)
        sink(response, is_final)

    return answered


# The parameter that names the BOOL input by which a decoupled model streams. Where the input is absent or false, the
# model responds once, so that infer can serve it.
STREAM_INPUT_PARAMETER = "STREAM_INPUT"


class HostedModel:
    """A loaded version. `submit` takes requests; `unload` lets those in flight end.

    `finish` releases the instances after the scheduler has stopped; `pids` are their processes.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: Any,
        scheduler: RequestScheduler,
        *,
        statistics: Statistics,
        tracer: Tracer,
        now_ns: Callable[[], int],
        finish: Callable[[], Awaitable[None]],
        pids: Callable[[], Sequence[int]] = tuple,
        is_cached: bool = False,
        is_ensemble: bool = False,
    ) -> None:
        self.spec = spec
        self.config = config
        self.name = spec.name
        self.version = str(spec.version)
        self.statistics = statistics
        self.is_decoupled: bool = config.model_transaction_policy.decoupled
        parameters = config.parameters
        self.stream_input: str = (
            parameters[STREAM_INPUT_PARAMETER].string_value if STREAM_INPUT_PARAMETER in parameters else ""
        )
        self.has_batches: bool = config.max_batch_size > 0
        self.is_cached = is_cached
        tags = {f"_{name}": value for name, value in config.metric_tags.items()}
        self.metric_labels: Mapping[str, str] = {"model": self.name, "version": self.version, **tags}
        self.num_in_flight = 0
        self.pids = pids
        self._scheduler = scheduler
        self._submit = scheduler.submit
        self._check = RequestCheck(config)
        # From the client's shapes to the model's, and back.
        self._input_reshapes = {
            io.name: Reshape(tuple(io.dims), tuple(io.reshape.shape), self.has_batches)
            for io in config.input
            if io.HasField("reshape")
        }
        self._output_reshapes = {
            io.name: Reshape(tuple(io.reshape.shape), tuple(io.dims), self.has_batches)
            for io in config.output
            if io.HasField("reshape")
        }
        self._is_ensemble = is_ensemble
        self._now_ns = now_ns
        self._finish = finish
        self._tracer = tracer
        self._sampler: TraceSampler | None = None
        self._is_closing = False
        self._has_drained: asyncio.Event | None = None
        # Whether responses are intercepted even without a trace.
        self._is_intercepted = bool(self._input_reshapes or self._output_reshapes) or self.is_decoupled
        tracer.listeners.append(self._follow_settings)
        self._follow_settings()

    @property
    def num_pending(self) -> int:
        """Requests that wait for an instance."""
        return self._scheduler.num_pending

    def labels(self, output: str) -> Sequence[str]:
        """The labels of an output's classes; none where it has none."""
        return self.spec.labels.get(output, ())

    def submit(self, call: InferenceCall) -> None:
        """Take a call for this version. It may end at once with an error. Never raises."""
        try:
            call.batch_size = self._check(call.request)
        except EngineError as error:
            call.fail(error)
            return
        if self._is_closing:
            call.fail(unavailable(f"model '{self.name}' version {self.version} is being unloaded"))
            return
        if not call.arrived_ns:
            call.arrived_ns = self._now_ns()
        self.num_in_flight += 1
        call.when_over(self._ended)
        if self._is_intercepted or self._sampler is not None or PARENT in call.request.trace:
            self._intercept(call)
        self._submit(call)

    async def unload(self) -> None:
        """Take no new calls, let those in flight end, and release everything."""
        self._is_closing = True
        if self.num_in_flight:
            self._has_drained = asyncio.Event()
            await self._has_drained.wait()
        self._tracer.listeners.remove(self._follow_settings)
        self._scheduler.stop()
        await self._finish()

    def abort(self) -> None:
        """Stop waiting for calls in flight."""
        self._scheduler.stop()
        if self._has_drained is not None:
            self._has_drained.set()

    def _follow_settings(self) -> None:
        self._sampler = self._tracer.sampler(self.name)

    def _ended(self, call: InferenceCall) -> None:
        self.num_in_flight -= 1
        self.statistics.call_ended(call)
        if self._is_ensemble and call.error is None:
            self.statistics.batch_ended(call.batch_size, call)
        if self._is_closing and not self.num_in_flight and self._has_drained is not None:
            self._has_drained.set()

    def _intercept(self, call: InferenceCall) -> None:
        interceptors: list[Interceptor] = []
        request = call.request
        if self._input_reshapes:
            call.request = replace(request, inputs=_reshaped(self._input_reshapes, request.inputs))
        if self._output_reshapes:
            interceptors.append(self._reshape)
        if self.is_decoupled:
            interceptors.append(self._response_counter())
        trace = self._trace(call)
        if trace is not None:
            trace.record_inputs(request)
            interceptors.append(trace.record_outputs)
            call.when_over(self._trace_end(trace))
            if self._is_ensemble:
                self._tracer.of_ensembles[str(trace.number)] = trace
                call.request = replace(call.request, trace={**trace.context, PARENT: str(trace.number)})
        if interceptors:
            call.through(lambda sink: _intercepted(sink, interceptors))

    def _trace(self, call: InferenceCall) -> Trace | None:
        request = call.request
        if PARENT in request.trace:
            parent = self._tracer.of_ensembles.get(request.trace[PARENT])
            call.request = replace(
                request, trace={name: value for name, value in request.trace.items() if name != PARENT}
            )
            return None if parent is None else parent.step(self.name, self.spec.version, request.id)
        sampler = self._sampler
        return None if sampler is None else sampler.sample(self.name, self.spec.version, request)

    def _reshape(self, response: InferResponse) -> InferResponse:
        return replace(response, outputs=_reshaped(self._output_reshapes, response.outputs))

    def _response_counter(self) -> Interceptor:
        """Counts the responses of a stream by their number."""
        number, last_ns = 0, self._now_ns()

        def count(response: InferResponse) -> InferResponse:
            nonlocal number, last_ns
            now = self._now_ns()
            is_error = response.error is not None
            self.statistics.response_sent(
                number, now - last_ns, is_error=is_error, is_empty=not is_error and not response.outputs
            )
            number, last_ns = number + 1, now
            return response

        return count

    def _trace_end(self, trace: Trace) -> Callable[[InferenceCall], None]:
        def ended(call: InferenceCall) -> None:
            self._ended(call)
            self._tracer.of_ensembles.pop(str(trace.number), None)
            trace.end(call, self._now_ns())

        return ended
