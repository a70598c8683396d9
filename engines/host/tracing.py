"""Traces of requests, and their files in Triton's format.

A trace is built when its call ends, from the times that the call carries: a request without a trace costs one look at a
flag.
Source: Triton server `src/tracer.cc` (TraceFile; TraceTensorActivity: FP16 and BF16 have no data); the trace extension.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count as counter
from math import prod
from pathlib import Path
from typing import Any

import orjson

from engines.core.calls import InferenceCall
from engines.core.messages import InferRequest, InferResponse, Raw, SharedMemory, TensorData
from engines.host.trace_settings import TraceSettings, TraceSettingsBook
from gateway.protocol.conversion.tensors import CODES, numbers, split_elements
from gateway.protocol.trace_context import read_traceparent

_log = logging.getLogger(__name__)

Records = Sequence[dict[str, Any]]


class TraceFiles:
    """The trace files of this host; existing files are overwritten."""

    def __init__(self) -> None:
        self._created: set[str] = set()
        self._next: dict[str, int] = {}

    def append(self, path: str, records: Records) -> None:
        """Append to a file, which is a complete JSON array after each call."""
        try:
            if path in self._created:
                with Path(path).open("r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    file.write(b"," + orjson.dumps(records)[1:])
            else:
                Path(path).write_bytes(orjson.dumps(records))
                self._created.add(path)
        except OSError as error:
            _log.error("failed creating trace file: %s", error)

    def write_numbered(self, path: str, records: Records) -> None:
        """Write a new file: `path` with the next number behind it, from 0 on."""
        number = self._next.get(path, 0)
        self._next[path] = number + 1
        self.append(f"{path}.{number}", records)


def written_tensor(tensor: TensorData) -> dict[str, str]:
    """The record of a tensor, without data where it is in shared memory."""
    data = tensor.data
    elements = () if isinstance(data, SharedMemory) else _elements(tensor.datatype, data, prod(tensor.shape))
    return {
        "name": tensor.name,
        "data": ",".join(elements),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype,
    }


def _elements(datatype: str, data: Raw, count: int) -> Iterator[str]:
    if datatype == "BYTES":
        for element in split_elements(data, count):
            yield f'"{element.decode("utf-8", "replace")}"'
    elif datatype == "BOOL" or datatype in CODES:
        for value in numbers(datatype, data):
            yield f"{value:g}" if isinstance(value, float) else str(value)


# The key of the ensemble's trace number, beside the W3C trace context of its steps.
PARENT = "pointsman-trace"

# Exports a finished trace in the mode "opentelemetry".
Export = Callable[["Trace"], None]


class Trace:
    """The trace of one request of one model; times in nanoseconds."""

    def __init__(
        self,
        sampler: TraceSampler,
        model: str,
        version: int,
        request_id: str,
        context: Mapping[str, str],
        parent: Trace | None = None,
    ) -> None:
        self.number = sampler.next_number()
        self.model = model
        self.version = version
        self.request_id = request_id
        self.parent = parent
        self.context = context  # W3C trace context that came with the request
        self.timestamps: list[tuple[str, int]] = []
        self.instance = ""  # of the model, that has computed
        self.error = ""
        self._tensors: list[dict[str, Any]] = []
        self.steps: list[Trace] = []
        self._num_open_steps = 0
        self._has_ended = False
        self._sampler = sampler
        self._has_tensors = "TENSORS" in sampler.settings.levels

    def step(self, model: str, version: int, request_id: str) -> Trace:
        """The trace of a step's request."""
        step = Trace(self._sampler, model, version, request_id, self.context, self)
        self.steps.append(step)
        self._num_open_steps += 1
        return step

    def record_inputs(self, request: InferRequest) -> None:
        if self._has_tensors:
            self._record("TENSOR_QUEUE_INPUT", request.inputs)

    def record_outputs(self, response: InferResponse) -> InferResponse:
        """An `Interceptor`."""
        if self._has_tensors:
            self._record("TENSOR_BACKEND_OUTPUT", response.outputs)
        return response

    def _record(self, activity: str, tensors: Iterable[TensorData]) -> None:
        """Write the tensors as text at once: their memory may be reused."""
        for tensor in tensors:
            self._tensors.append({"id": self.number, "activity": activity, "tensor": written_tensor(tensor)})

    def end(self, call: InferenceCall, now_ns: int) -> None:
        """Record the times of the call; the trace is exported when its steps have ended too."""
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
        self.instance = call.instance
        if call.error is not None:
            self.error = call.error.message
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
        """Triton's records of a trace and its steps."""
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
    """Samples the requests of a model by its settings, and exports their traces."""

    def __init__(
        self, settings: TraceSettings, numbers: Callable[[], int], files: TraceFiles, export: Export | None
    ) -> None:
        self.settings = settings
        self._files = files
        self.next_number = numbers
        self._export = export
        self._remaining = settings.count
        self._seen = 0
        self._num_open = 0
        self._waiting: list[dict[str, Any]] = []
        self._num_waiting = 0
        self._is_closed = False

    def sample(self, model: str, version: int, request: InferRequest) -> Trace | None:
        """A trace for this request, None where it is not sampled."""
        if self._remaining == 0:
            return None
        is_sampled = self._sampled_by_caller(request) if self._export is not None else None
        if is_sampled is None:
            self._seen += 1
            is_sampled = not self._seen % self.settings.rate
        if not is_sampled:
            return None
        self._remaining -= self._remaining > 0
        self._num_open += 1
        return Trace(self, model, version, request.id, request.trace)

    @staticmethod
    def _sampled_by_caller(request: InferRequest) -> bool | None:
        """What the caller's trace context says; None where there is none. In Triton, too, a caller's span that is
        sampled has precedence over the rate."""
        context = read_traceparent(request.trace.get("traceparent", "").encode("latin-1"))
        return context.is_sampled if context is not None else None

    def ended(self, trace: Trace) -> None:
        if self._export is not None:
            self._export(trace)
            return
        self._waiting += trace.records()
        self._num_waiting += 1
        self._num_open -= 1
        is_last = not self._remaining and not self._num_open
        if is_last or 0 < self.settings.log_frequency <= self._num_waiting:
            self._files.write_numbered(self.settings.file, self._take())
        elif self._is_closed:
            self.close()

    def close(self) -> None:
        """Write the waiting traces; later ones are written at once."""
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
        self.listeners: list[Callable[[], None]] = []  # called when `sampler` may return another sampler
        self.of_ensembles: dict[str, Trace] = {}  # of those in flight, by trace number: the parents of steps
        self.settings = TraceSettingsBook(default, self._changed)

    def sampler(self, model: str) -> TraceSampler | None:
        """The sampler of a model; None where its requests are not traced."""
        settings = self.settings.of(model)
        if settings.problem is not None:
            return None
        # Models without settings of their own share the host's sampler, as in Triton.
        name = model if self.settings.has_own(model) else ""
        if name not in self._samplers:
            export = self._export if settings.mode == "opentelemetry" else None
            self._samplers[name] = TraceSampler(settings, self._numbers, self._files, export)
        return self._samplers[name]

    def close(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers.clear()

    def _changed(self, model: str) -> None:
        for name in list(self._samplers) if not model else [model]:
            if sampler := self._samplers.pop(name, None):
                sampler.close()
        for listener in list(self.listeners):
            listener()
