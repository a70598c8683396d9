"""Traces of single requests, written as Triton writes them.

A trace is worked out when its call has ended, from the times that the call carries: a request that is not traced costs
one look at a flag.
Source: Triton server `src/tracer.cc`; the trace extension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count as counter
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.messages import InferRequest, InferResponse, TensorData
from engines.host.trace_files import TraceFiles
from engines.host.trace_settings import TraceSettings, TraceSettingsBook
from engines.host.trace_tensors import written_tensor

# Beside the W3C trace context of an ensemble's steps: the number of the ensemble's own trace.
PARENT = "pointsman-trace"

# What gets the events of a finished trace in the mode "opentelemetry".
Export = Callable[["Trace"], None]


class Trace:
    """One request of one model that is traced: its facts, and events by their times in nanoseconds."""

    def __init__(
        self,
        number: int,
        model: str,
        version: int,
        request_id: str,
        parent: Trace | None,
        context: Mapping[str, str],
        sampler: TraceSampler,
    ) -> None:
        self.number = number
        self.model = model
        self.version = version
        self.request_id = request_id
        self.parent = parent
        self.context = context  # W3C trace context that came with the request
        self.timestamps: list[tuple[str, int]] = []
        self._tensors: list[dict[str, Any]] = []
        self.steps: list[Trace] = []
        self._num_open_steps = 0
        self._has_ended = False
        self._sampler = sampler
        self._has_tensors = "TENSORS" in sampler.settings.levels

    def for_steps(self) -> dict[str, str]:
        """The trace context of requests that are made on behalf of this one."""
        return {**self.context, PARENT: str(self.number)}

    def step(self, model: str, version: int, request_id: str) -> Trace:
        """The trace of such a request."""
        made = self._sampler.make(model, version, request_id, self, self.context)
        self.steps.append(made)
        self._num_open_steps += 1
        return made

    def keep_inputs(self, request: InferRequest) -> None:
        if self._has_tensors:
            self._keep("TENSOR_QUEUE_INPUT", request.inputs)

    def keep_outputs(self, response: InferResponse) -> None:
        if self._has_tensors:
            self._keep("TENSOR_BACKEND_OUTPUT", response.outputs)

    def _keep(self, activity: str, tensors: Iterable[TensorData]) -> None:
        """As text, at once: the data may lie in memory that is used again."""
        for tensor in tensors:
            self._tensors.append({"id": self.number, "activity": activity, "tensor": written_tensor(tensor)})

    def end(self, call: InferenceCall, now_ns: int) -> None:
        """Take the times of the call; the whole goes out when all of its parts have ended."""
        computed = call.started_ns
        timestamps = [("REQUEST_START", call.arrived_ns), ("QUEUE_START", call.arrived_ns)]
        if computed:
            timestamps += [
                ("COMPUTE_START", computed),
                ("COMPUTE_INPUT_END", computed + call.compute_input_ns),
                ("COMPUTE_OUTPUT_START", computed + call.compute_input_ns + call.compute_infer_ns),
                ("COMPUTE_END", computed + call.compute_input_ns + call.compute_infer_ns + call.compute_output_ns),
            ]
        if call.first_response_ns:
            timestamps.append(("INFER_RESPONSE_COMPLETE", call.first_response_ns))
        self.timestamps = [*timestamps, ("REQUEST_END", now_ns)]
        self._has_ended = True
        self._close()

    def _close(self) -> None:
        if not self._has_ended or self._num_open_steps:
            return
        if self.parent is None:
            self._sampler.ended(self)
        else:
            self.parent._num_open_steps -= 1
            self.parent._close()

    def records(self) -> list[dict[str, Any]]:
        """What Triton writes of a trace and of its parts."""
        head: dict[str, Any] = {"id": self.number, "model_name": self.model, "model_version": self.version}
        if self.request_id:
            head["request_id"] = self.request_id
        if self.parent is not None:
            head["parent_id"] = self.parent.number
        timestamps = [
            {"id": self.number, "timestamps": [{"name": name, "ns": at_ns}]} for name, at_ns in self.timestamps
        ]
        steps = [record for step in self.steps for record in step.records()]
        return [head, *timestamps[:2], *self._tensors, *timestamps[2:], *steps]


class TraceSampler:
    """Which requests of a model are traced under its settings, and where their traces go."""

    def __init__(
        self, settings: TraceSettings, numbers: Callable[[], int], files: TraceFiles, export: Export | None
    ) -> None:
        self.settings = settings
        self._files = files
        self._numbers = numbers
        self._export = export
        self._left = settings.count
        self._seen = 0
        self._created = 0
        self._collected = 0
        self._waiting: list[dict[str, Any]] = []
        self._num_waiting = 0
        self._is_closed = False

    def sample(self, model: str, version: int, request: InferRequest) -> Trace | None:
        """A trace for this request, where it is one of those that are to have one."""
        if self._left == 0:
            return None
        self._seen += 1
        if self._seen % self.settings.rate:
            return None
        self._left -= self._left > 0
        self._created += 1
        return self.make(model, version, request.id, None, request.trace)

    def make(
        self, model: str, version: int, request_id: str, parent: Trace | None, context: Mapping[str, str]
    ) -> Trace:
        """A trace; `parent` is the one that this is a part of."""
        return Trace(self._numbers(), model, version, request_id, parent, context, self)

    def ended(self, trace: Trace) -> None:
        if self._export is not None:
            self._export(trace)
            return
        self._waiting += trace.records()
        self._num_waiting += 1
        self._collected += 1
        is_last = self._left == 0 and self._collected == self._created
        if is_last or 0 < self.settings.log_frequency <= self._num_waiting:
            self._files.write_numbered(self.settings.file, self._take())
        elif self._is_closed:
            self.close()

    def close(self) -> None:
        """Write what is not written yet; what comes from now on is written at once."""
        self._is_closed = True
        if self._waiting:
            write = self._files.write_numbered if self.settings.log_frequency else self._files.append
            write(self.settings.file, self._take())

    def _take(self) -> list[dict[str, Any]]:
        taken, self._waiting, self._num_waiting = self._waiting, [], 0
        return taken


class Tracer:
    """The samplers of all models, and their settings."""

    def __init__(self, default: TraceSettings, export: Export | None = None) -> None:
        self._export = export
        self._files = TraceFiles()
        self._numbers = counter(1).__next__
        self._samplers: dict[str, TraceSampler] = {}
        self._listeners: list[Callable[[], None]] = []
        self._with_steps: dict[str, Trace] = {}  # of ensembles that are under way, by their numbers
        self.settings = TraceSettingsBook(default, self._changed)

    def sampler(self, model: str) -> TraceSampler | None:
        """Who samples the requests of a model now; None where none of them are traced."""
        settings = self.settings.of(model)
        if settings.problem is not None:
            return None
        # Models that say nothing themselves share the host's sampler, as they do in Triton.
        name = model if self.settings.has_own(model) else ""
        if name not in self._samplers:
            export = self._export if settings.mode == "opentelemetry" else None
            self._samplers[name] = TraceSampler(settings, self._numbers, self._files, export)
        return self._samplers[name]

    def open_for_steps(self, trace: Trace) -> None:
        """Let the steps of an ensemble's request find its trace, until `close_for_steps`."""
        self._with_steps[str(trace.number)] = trace

    def close_for_steps(self, trace: Trace) -> None:
        self._with_steps.pop(str(trace.number), None)

    def parent_of(self, request: InferRequest) -> Trace | None:
        """The trace of the ensemble that makes this request; None where there is none."""
        return self._with_steps.get(request.trace.get(PARENT, ""))

    def when_changed(self, listener: Callable[[], None]) -> None:
        """Have `listener` called whenever `sampler` may answer another."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    def close(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers.clear()

    def _changed(self, model: str) -> None:
        for name in list(self._samplers) if not model else [model]:
            if sampler := self._samplers.pop(name, None):
                sampler.close()
        for listener in list(self._listeners):
            listener()
