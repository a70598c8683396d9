"""The scheduler of an ensemble: each step of a request runs on its model as soon as its inputs are available.

Tensors pass between steps by reference. An output that the client wants in shared memory is requested there from the
step that writes it.

Source: Triton core `ensemble_scheduler.cc`; `ensemble_models.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engines.core.calls import InferenceCall, Submit
from engines.core.errors import EngineError, invalid
from engines.core.messages import InferRequest, InferResponse, Scalar, TensorData, WantedOutput
from engines.scheduling.ensemble_graph import EnsembleTensors, Gate, Graph, SequencePosition, Step, fitted
from engines.scheduling.interfaces import Instance, stopping, tag

# Returns the submit function of a version of a model ("": its policy chooses). Raises: EngineError if it does not
# serve.
SubmitTo = Callable[[str, str], Submit]
# Returns the configuration of the same.
ConfigOf = Callable[[str, str], Any]
Dims = dict[str, tuple[int, ...]]
# New tensors, by name and number.
New = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Target:
    """The model of a step. `dims` are those of its inputs, without a batch axis."""

    submit: Submit
    has_batches: bool
    dims: Mapping[str, Sequence[int]]


class Ensemble:
    """`config_of` lets tensors pass between models that batch and models that do not; without it their shapes are left
    as they are."""

    def __init__(self, config: Any, submit_to: SubmitTo, config_of: ConfigOf | None = None) -> None:
        self.graph = Graph(config)
        self._submit_to = submit_to
        self._config_of = config_of
        self._read: dict[int, tuple[Any, bool, Dims]] = {}  # of each step's model: its configuration and properties
        self.is_decoupled: bool = config.model_transaction_policy.decoupled
        self.has_batches: bool = config.max_batch_size > 0
        limit = config.ensemble_scheduling.max_inflight_requests
        self.gates = [Gate(limit) for _ in self.graph.steps] if limit else []
        self._is_stopped = False

    @property
    def num_pending(self) -> int:
        """Requests to steps that wait for others to the same step to end (`max_inflight_requests`)."""
        return sum(len(gate.waiting) for gate in self.gates)

    def submit(self, call: InferenceCall) -> None:
        if self._is_stopped:
            call.fail(stopping(call))
        elif call.is_cancelled:
            call.fail_cancelled()
        else:
            call.started_ns = call.arrived_ns
            Run(self, call).start()

    def instance_changed(self, instance: Instance) -> None:
        """An ensemble has none."""

    def stop(self) -> None:
        self._is_stopped = True

    def target(self, step: Step) -> Target:
        """The model of a step. Raises: EngineError if it does not serve."""
        submit = self._submit_to(step.model, step.version)
        if self._config_of is None:
            return Target(submit, self.has_batches, {})
        config = self._config_of(step.model, step.version)
        read = self._read.get(step.number)
        if read is None or read[0] is not config:
            dims = {tensor.name: tuple(tensor.dims) for tensor in config.input}
            read = self._read[step.number] = config, config.max_batch_size > 0, dims
        return Target(submit, read[1], read[2])


class Run:
    """One request: the steps to run, their requests, and the responses to the client."""

    __slots__ = (
        "_call",
        "_ensemble",
        "_has_answered",
        "_num_in_flight",
        "_outputs",
        "_running",
        "_standing",
        "_targets",
        "_tensors",
        "_wanted",
    )

    def __init__(self, ensemble: Ensemble, call: InferenceCall) -> None:
        request = call.request
        self._ensemble = ensemble
        self._call = call
        self._outputs = {output.name: output for output in request.outputs}
        self._wanted = [name for name in ensemble.graph.dims if not self._outputs or name in self._outputs]
        self._tensors = EnsembleTensors(ensemble.graph.needed(self._wanted), self._wanted)
        self._standing = SequencePosition(request.sequence_id, request.sequence_start, request.sequence_end)
        self._targets: list[Target] = []  # of each step
        self._running: set[InferenceCall] = set()
        self._num_in_flight = 0  # steps that have not ended, those too that are still to be sent off
        self._has_answered = False

    def start(self) -> None:
        self._call.on_cancel = self._cancel
        try:
            self._targets = [self._ensemble.target(step) for step in self._ensemble.graph.steps]
            new = self._take_inputs()
        except EngineError as error:
            self._fail(error)
            return
        self._go_on(new)

    def _take_inputs(self) -> New:
        rows = self._call.batch_size if self._ensemble.has_batches else 0
        new = []
        for tensor in self._call.request.inputs:
            if tensor.name not in self._tensors.series:
                raise invalid(
                    f"{tag(self._call)}unexpected input '{tensor.name}' in request header that does not map to any "
                    "ensemble inputs"
                )
            series = self._tensors.series[tensor.name]
            series.rows = rows
            new.append((tensor.name, series.add(tensor, None)))
        for name in self._ensemble.graph.optional:
            series = self._tensors.series[name]
            if not series.next_number:
                series.rows = rows
                new.append((name, series.add(None, None)))
        return new

    def _go_on(self, new: New) -> None:
        """Send the responses and start the steps that these tensors complete."""
        try:
            requests = [(step, self._request(step, number)) for step, number in self._tensors.ready_steps(new)]
            self._num_in_flight += len(requests)
            for number in self._tensors.ready_answers(new):
                self._answer(number)
        except EngineError as error:
            self._fail(error)
            return
        self._end_if_over()
        gates = self._ensemble.gates
        for step, request in requests:
            if gates:
                gates[step.number].enter(partial(self._send, step, request))
            else:
                self._send(step, request)

    def _end_if_over(self) -> None:
        if self._num_in_flight or self._call.is_over:
            return
        if self._has_answered or self._ensemble.is_decoupled:
            self._call.finish()
        else:
            self._fail(
                invalid(
                    f"{tag(self._call)}unexpected deadlock, at least one output is not set while no more ensemble "
                    "steps can be made"
                )
            )

    def _send(self, step: Step, request: InferRequest) -> None:
        position = SequencePosition(request.sequence_id, request.sequence_start, request.sequence_end)
        call = InferenceCall(request, _discard)
        call.through(lambda _: partial(self._responded, call, step, position))
        if self._call.is_over:  # it has failed while this step waited
            call.fail_cancelled()
            return
        call.batch_size = self._rows(step, request) or 1
        self._running.add(call)
        self._targets[step.number].submit(call)

    def _responded(
        self,
        call: InferenceCall,
        step: Step,
        position: SequencePosition,
        response: InferResponse | None,
        is_final: bool,
    ) -> None:
        """A step has responded; `position` is that of its request."""
        if is_final:
            self._num_in_flight -= 1
            self._running.discard(call)
            self._call.compute_input_ns += call.compute_input_ns
            self._call.compute_infer_ns += call.compute_infer_ns
            self._call.compute_output_ns += call.compute_output_ns
        try:
            if self._call.is_over:
                return
            if response is not None and response.error is not None:
                self._fail(response.error)
            elif response is not None:
                self._go_on(self._take_outputs(call, step, _position_of(response.parameters, position), response))
            elif is_final:
                self._end_if_over()
        except EngineError as error:
            self._fail(error)
        finally:
            if is_final and self._ensemble.gates:
                self._ensemble.gates[step.number].leave()

    def _take_outputs(
        self, call: InferenceCall, step: Step, position: SequencePosition, response: InferResponse
    ) -> New:
        stored = {tensor.name: tensor for tensor in response.outputs}
        rows = self._rows(step, call.request)
        new = []
        for name, source in step.outputs.items():
            series = self._tensors.series[source]
            series.rows = rows
            # A missing one may be an optional input of the next model.
            new.append((source, series.add(stored.get(name), position)))
        return new

    def _request(self, step: Step, number: int) -> InferRequest:
        """The request to a step with the tensors of this number."""
        target = self._targets[step.number]
        inputs, position = [], None
        for name, source in step.inputs.items():
            series = self._tensors.series[source]
            stored = series.tensors[number]
            if stored.tensor is not None:
                shape = stored.tensor.shape
                if name in target.dims:
                    shape = fitted(target.dims[name], batches=target.has_batches, rows=series.rows, shape=shape)
                inputs.append(TensorData(name, stored.tensor.datatype, shape, stored.tensor.data))
            position = position or stored.position
        for source in dict.fromkeys(step.inputs.values()):
            self._tensors.series[source].use(number)
        position = position or self._standing
        request = self._call.request
        return InferRequest(
            model=step.model,
            version=step.version,
            id=request.id,
            parameters=request.parameters,
            inputs=tuple(inputs),
            outputs=tuple(self._wanted_of(name, source) for name, source in step.outputs.items()),
            sequence_id=position.sequence_id,
            sequence_start=position.is_start,
            sequence_end=position.is_end,
            priority=request.priority,
            timeout_us=request.timeout_us,
            trace=request.trace,
        )

    def _wanted_of(self, name: str, source: str) -> WantedOutput:
        """A step's output; one for the client's shared memory is written there directly."""
        output = self._outputs.get(source)
        if output is None or output.num_classes:
            return WantedOutput(name)
        return WantedOutput(name, shared_memory=output.shared_memory)

    def _answer(self, number: int) -> None:
        outputs: list[TensorData] = []
        parameters: dict[str, Scalar] = {}
        for name in self._wanted:
            series = self._tensors.series[name]
            stored = series.tensors[number]
            series.use(number)
            if stored.tensor is None:
                continue
            shape = fitted(
                self._ensemble.graph.dims[name],
                batches=self._ensemble.has_batches,
                rows=series.rows,
                shape=stored.tensor.shape,
            )
            outputs.append(TensorData(name, stored.tensor.datatype, shape, stored.tensor.data))
            if stored.position is not None:
                parameters["sequence_id"] = stored.position.sequence_id
                parameters["sequence_start"] = stored.position.is_start
                parameters["sequence_end"] = stored.position.is_end
        self._has_answered = True
        # After the only response the remaining steps produce nothing that is requested.
        is_final = not self._ensemble.is_decoupled or not self._num_in_flight
        self._call.respond(InferResponse(tuple(outputs), parameters), is_final=is_final)

    def _fail(self, error: EngineError) -> None:
        """The client gets the error now; running steps end without effect."""
        if not self._call.is_over:
            self._call.fail(EngineError(error.code, f"in ensemble '{self._ensemble.graph.name}', {error.message}"))

    def _cancel(self) -> None:
        self._call.fail_cancelled()
        for call in list(self._running):
            call.cancel()

    def _rows(self, step: Step, request: InferRequest) -> int:
        """The batch size of a request to a step, 0 if its model does not batch."""
        if not self._targets[step.number].has_batches:
            return 0
        return next((tensor.shape[0] for tensor in request.inputs if tensor.shape), 0)


def _discard(response: InferResponse | None, is_final: bool) -> None:
    """Replaced before the call is submitted."""


def _position_of(parameters: Mapping[str, Scalar], default: SequencePosition) -> SequencePosition:
    """The position in a sequence for the next steps: a model may set it in the parameters of its response. Raises:
    EngineError for parameters of the wrong type."""
    if not parameters.keys() & {"sequence_id", "sequence_start", "sequence_end"}:
        return default
    sequence_id = parameters.get("sequence_id", default.sequence_id)
    if isinstance(sequence_id, bool) or not isinstance(sequence_id, int | str):
        raise invalid(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    flags = []
    for name in ("sequence_start", "sequence_end"):
        flag = parameters.get(name, False)
        if not isinstance(flag, bool):
            raise invalid(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
        flags.append(flag)
    return SequencePosition(sequence_id, *flags)
