"""The scheduler of an ensemble: each step of a request runs on its model as soon as its inputs are available.

Tensors pass between steps by reference. An output that the client wants in shared memory is requested there from the
step that writes it.

Source: Triton core `ensemble_scheduler.cc`; `ensemble_models.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from engines.core.calls import InferenceCall, Submit
from engines.scheduling.ensemble_graph import Graph, Step
from engines.scheduling.ensemble_run import Run, Target
from engines.scheduling.interfaces import Instance, stopping

# Returns the submit function of a version of a model ("": its policy chooses). Raises: EngineError if it does not
# serve.
SubmitTo = Callable[[str, str], Submit]
# Returns the configuration of the same.
ConfigOf = Callable[[str, str], Any]
Dims = dict[str, tuple[int, ...]]


class Ensemble:
    """`config_of` lets tensors pass between models that batch and models that do not; without it their shapes are left
    as they are."""

    def __init__(self, config: Any, submit_to: SubmitTo, config_of: ConfigOf | None = None) -> None:
        self.graph = Graph(config)
        self._submit_to = submit_to
        self._config_of = config_of
        self._read = dict[int, tuple[Any, bool, Dims]]()  # the configuration of each step's model, and its properties
        self.is_decoupled: bool = config.model_transaction_policy.decoupled
        self.has_batches: bool = config.max_batch_size > 0
        limit = config.ensemble_scheduling.max_inflight_requests
        self._gates = [Gate(limit) for _ in self.graph.steps] if limit else []
        self._is_stopped = False

    @property
    def num_pending(self) -> int:
        """Requests to steps that wait for others to the same step to end (`max_inflight_requests`)."""
        return sum(gate.num_waiting for gate in self._gates)

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

    def enter(self, step: int, go: Callable[[], None]) -> None:
        """Call `go` when a request may go to a step; `leave` follows when it has ended."""
        if self._gates:
            self._gates[step].enter(go)
        else:
            go()

    def leave(self, step: int) -> None:
        if self._gates:
            self._gates[step].leave()


class Gate:
    """Admits a limited number at a time, in order."""

    __slots__ = ("_is_opening", "_limit", "_num_inside", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_inside = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_opening = False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def enter(self, go: Callable[[], None]) -> None:
        self._waiting.append(go)
        self._open()

    def leave(self) -> None:
        self._num_inside -= 1
        self._open()

    def _open(self) -> None:
        if self._is_opening:
            return  # `go` ended at once: the loop below continues
        self._is_opening = True
        try:
            while self._waiting and self._num_inside < self._limit:
                self._num_inside += 1
                self._waiting.popleft()()
        finally:
            self._is_opening = False
