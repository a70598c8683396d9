"""A running instance: handles the host's messages in order, until it stops; its requests as a backend sees them."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from types import FrameType
from typing import Any

from engines.backends.interfaces import Backend, InstanceSpec
from engines.core.datatypes import Array
from engines.core.errors import EngineError, internal, unavailable
from engines.core.messages import Scalar, SharedMemory
from engines.ipc import protocol
from engines.ipc.arena import ArenaFullError
from engines.ipc.host_connection import HostConnection
from engines.ipc.protocol import pack_error
from engines.runner.implicit_state import States, states_of
from engines.runner.signature import Signature

_PAGE_BYTES = resource.getpagesize()
MEMORY_PARAMETER = "MAX_MEMORY_MB"
_NO_TEXT = "<EMPTY MESSAGE>"  # as pybind11 writes it
_OUR_CODE = str(Path(__file__).parents[1])
Response = tuple[int, bool, Any, Any, Any]  # request, whether it is the last, outputs, parameters, error
Places = dict[str, SharedMemory]
SEQUENCE_START, SEQUENCE_END = 1, 2


class RunningInstance:
    """One copy of a model, on one thread."""

    def __init__(self, connection: HostConnection, backend: Backend) -> None:
        self.connection = connection
        self.backend = backend
        self.model = self.name = ""
        self.signature: Signature
        self.states: States
        self._reports_memory = False

    def start(self, spec: InstanceSpec) -> None:
        """Load the model, and report the result to the host. Raises: HostGoneError, and EngineError if the model does
        not load, after the report."""
        self.model, self.name = spec.model, spec.name
        try:
            self.signature = Signature(spec.config)
            self.states = states_of(spec)
            self._reports_memory = MEMORY_PARAMETER in spec.config.parameters
            self.backend.initialize(spec)
        except BaseException as error:
            failure = as_error(error)
            self.connection.send(protocol.FAILED, failure.code.value, failure.message)
            raise failure from error
        placement = getattr(self.backend, "placement", None)
        self.connection.send(protocol.STARTED, "" if placement is None else json.dumps(placement, default=str))

    def serve(self) -> None:
        """Handle messages until STOP; the model is finalized then. Raises: HostGoneError."""
        connection = self.connection
        while True:
            message = connection.next_work()
            received_ns = monotonic_ns()
            kind = message[0]
            if kind == protocol.EXECUTE:
                Execution(self, message[2]).run(message[3], received_ns)
                del message
                if connection.arrays.has_freed:
                    connection.send(protocol.FREED)
            elif kind == protocol.FORGET:
                self.states.drop(message[2])
            elif kind == protocol.STOP:
                try:
                    self.backend.finalize()
                except BaseException as error:
                    text = f"failed to finalize '{self.name}': {describe_error(error)}"
                    connection.send(protocol.LOG, "error", text, "", 0)
                connection.send(protocol.STOPPED)
                return

    def failure_text(self, error: BaseException) -> str:
        """The error of requests that a failure of the model leaves without a response."""
        return f"Failed to process the request(s) for model '{self.name}', message: {describe_error(error)}"

    def memory_bytes(self) -> int:
        """The resident set of the process if the host has set a limit; else 0."""
        if not self._reports_memory:
            return 0
        if sys.platform == "linux":
            return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def as_error(error: BaseException) -> EngineError:
    """The error of a failed load."""
    return error if isinstance(error, EngineError) else internal(describe_error(error))


def describe_error(error: BaseException) -> str:
    """`ValueError: boom`, and the lines of the model's code that led there."""
    text = f"{type(error).__name__}: {str(error) or _NO_TEXT}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame if trace is not None else None
    lines: list[str] = []
    while frame is not None and _is_ours(frame):  # frames of this package that the model has called
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        lines.append(f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n")
        frame = frame.f_back
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((_OUR_CODE, "<frozen runpy>"))


class ExecutionRequest:
    """One request of an execution; a decoupled model may respond several times. A request that is no longer referenced
    ends by itself, with an error if it has no response."""

    __slots__ = (
        "_execution",
        "_number",
        "_places",
        "chat",
        "datatypes",
        "flags",
        "id",
        "inputs",
        "is_answered",
        "is_over",
        "parameters",
        "priority",
        "sequence_id",
        "state_key",
        "timeout_us",
        "trace",
        "wanted",
    )

    def __init__(self, execution: Execution, packed: tuple[Any, ...]) -> None:
        self.is_over = True  # until it is complete: the execution responds to an unreadable one
        self._execution = execution
        (
            self._number,
            self.id,
            inputs,
            wanted,
            places,
            self.parameters,
            self.sequence_id,
            self.flags,
            self.priority,
            self.timeout_us,
            self.trace,
            self.state_key,
            self.chat,
        ) = packed
        instance = execution.instance
        self.wanted: tuple[str, ...] = wanted or instance.signature.output_names
        self._places: Places | None = {name: SharedMemory(*place) for name, *place in places} if places else None
        read = instance.connection.arrays.read
        self.inputs: dict[str, Array] = {each[0]: read(each) for each in inputs}
        self.datatypes: dict[str, str] = {each[0]: each[1] for each in inputs}
        self.is_answered = False
        if self.state_key is not None:
            self.inputs |= instance.states.inputs(
                self.state_key, is_start=self.sequence_start, sequence=self.sequence_id
            )
        self.is_over = False

    def __del__(self) -> None:
        if not self.is_over:
            self.abandon()

    @property
    def sequence_start(self) -> bool:
        return bool(self.flags & SEQUENCE_START)

    @property
    def sequence_end(self) -> bool:
        return bool(self.flags & SEQUENCE_END)

    @property
    def is_cancelled(self) -> bool:
        connection = self._execution.instance.connection
        return connection.is_cancelled(self._number)

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on another thread, if the client cancels; see `HostConnection`."""
        connection = self._execution.instance.connection
        connection.when_cancelled(self._number, callback)
        if self.is_over:  # ended by now
            connection.forget(self._number)

    def respond(
        self, outputs: Mapping[str, Array], *, is_final: bool = True, parameters: Mapping[str, Scalar] | None = None
    ) -> None:
        """Send a response, with the requested outputs only. Raises: ValueError after the final one."""
        self.answer(outputs.items(), is_final=is_final, parameters=parameters)

    def answer(self, outputs: Any, *, is_final: bool = True, parameters: Any = None, at_once: bool = False) -> None:
        """`respond` with pairs of names and arrays; `at_once` does not wait for the end of the execution. Raises:
        ValueError after the final one."""
        if self.is_over:
            raise ValueError("the request has been answered already")
        begin_ns = monotonic_ns()
        error = None
        packed = []
        execution = self._execution
        instance = execution.instance
        rules, write = instance.signature.outputs, instance.connection.arrays.write
        wanted, places = self.wanted, self._places
        try:
            if self.state_key is not None:
                outputs = self._keep_state(instance, dict(outputs))
            for name, array in outputs:
                rule = rules.get(name)
                if rule is not None and name in wanted:
                    packed.append(write(rule.name, rule.accept(array), array, places.get(name) if places else None))
        except EngineError as failure:
            packed, error = [], pack_error(failure)
        except ArenaFullError as failure:
            packed, error = [], pack_error(unavailable(str(failure)))
        self.is_answered = True
        self.is_over = is_final
        execution.output_ns += monotonic_ns() - begin_ns
        execution.take((self._number, is_final, packed, parameters or None, error), at_once)

    def finish(self) -> None:
        """End it without another response. Raises: ValueError after the final one."""
        if self.is_over:
            raise ValueError("the request has been answered already")
        self.is_over = True
        self._execution.take((self._number, True, None, None, None), at_once=True)

    def fail(self, error: EngineError, *, is_final: bool = True, at_once: bool = False) -> None:
        """Respond with an error; ignored after the final response."""
        if not self.is_over:
            self.is_answered = True
            self.is_over = is_final
            self._execution.take((self._number, is_final, None, None, pack_error(error)), at_once)

    def reschedule(self) -> None:
        self.is_over = True
        self._execution.take((self._number, False, None, None, None), at_once=False)

    def abandon(self) -> None:
        """End a request that nothing references."""
        if self.is_over:
            return
        if self._execution.instance.signature.is_decoupled or self.is_answered:
            self.finish()
        else:
            model = self._execution.instance.model
            self.fail(internal(f"model '{model}' has let go of the request without a response"), at_once=True)

    def _keep_state(self, instance: RunningInstance, outputs: dict[str, Array]) -> Any:
        names = instance.states.outputs.keys() & outputs.keys()
        instance.states.keep(
            self.state_key, {name: outputs[name] for name in names}, sequence=self.sequence_id, is_end=self.sequence_end
        )
        return [(name, array) for name, array in outputs.items() if name in instance.signature.outputs]


class Execution:
    """Responses during the execution are sent together at its end; those of decoupled models and late ones,
    immediately."""

    __slots__ = ("_number", "_responses", "_started_ns", "input_ns", "instance", "output_ns")

    def __init__(self, instance: RunningInstance, number: int) -> None:
        self.instance = instance
        self._number = number
        self._responses: list[Response] | None = None if instance.signature.is_decoupled else []
        self._started_ns = 0
        self.input_ns = 0
        self.output_ns = 0  # spent on writing responses

    def run(self, packed: list[tuple[Any, ...]], received_ns: int) -> None:
        """Have the backend process these requests, and report DONE to the host."""
        instance = self.instance
        requests: list[Any] = []
        for each in packed:
            try:
                requests.append(ExecutionRequest(self, each))
            except Exception as error:  # the other requests of the batch go on
                failure = error if isinstance(error, EngineError) else internal(instance.failure_text(error))
                self.take((each[0], True, None, None, pack_error(failure)), at_once=False)
        del packed[:]
        self._started_ns = monotonic_ns()
        self.input_ns = self._started_ns - received_ns
        try:
            if requests:
                instance.backend.execute(requests)
        except EngineError as error:
            fail_all(requests, error)
        except BaseException as error:
            fail_all(requests, internal(instance.failure_text(error)))
        if instance.states.rules:
            for request in requests:
                if request.sequence_end and request.state_key is not None:
                    instance.states.drop(request.state_key)
        requests.clear()  # ends the requests that are not referenced any more
        responses, self._responses = self._responses, None
        instance.connection.send(
            protocol.DONE,
            self._number,
            self.input_ns,
            monotonic_ns() - self._started_ns - self.output_ns,
            self.output_ns,
            instance.memory_bytes(),
            responses or [],
        )

    def take(self, response: Response, at_once: bool) -> None:
        if response[1]:
            self.instance.connection.forget(response[0])
        if self._responses is None or at_once:
            inference_ns = monotonic_ns() - self._started_ns - self.output_ns
            self.instance.connection.send(protocol.RESPONSE, *response, self.input_ns, inference_ns, self.output_ns)
        else:
            self._responses.append(response)


def fail_all(requests: list[ExecutionRequest], error: EngineError) -> None:
    for request in requests:
        request.fail(error)
