"""A request as a backend sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any, Protocol

from engines.backends.interfaces import Backend
from engines.core.datatypes import Array
from engines.core.errors import EngineError, ErrorCode, internal
from engines.core.messages import Scalar, SharedMemory
from engines.ipc import protocol
from engines.ipc.arena import ArenaFullError
from engines.ipc.host_connection import HostConnection
from engines.runner.implicit_state import States
from engines.runner.signature import Signature

Response = tuple[int, bool, Any, Any, Any]  # request, whether it is the last, outputs, parameters, error
Places = dict[str, SharedMemory]
SEQUENCE_START, SEQUENCE_END = 1, 2


class ExecutionContext(Protocol):
    """The instance that runs the requests."""

    connection: HostConnection
    backend: Backend
    signature: Signature
    states: States
    model: str

    def failure_text(self, error: BaseException) -> str: ...

    def memory_bytes(self) -> int: ...


class ExecutionRequest:
    """One request of an execution, to be answered once, or as often as it likes where the model is decoupled.

    One that nobody holds any more ends by itself: with an error where an answer is due.
    """

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
        self.is_over = True  # until it is whole: one that cannot be read is answered by its execution
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

    def when_cancelled(self, told: Callable[[], None]) -> None:
        """Have `told` called once, on another thread, where nobody wants the answer any more; see `HostConnection`."""
        connection = self._execution.instance.connection
        connection.when_cancelled(self._number, told)
        if self.is_over:  # meanwhile
            connection.forget(self._number)

    def respond(
        self, outputs: Mapping[str, Array], *, is_final: bool = True, parameters: Mapping[str, Scalar] | None = None
    ) -> None:
        """Answer; outputs that nobody asked for are left out.

        Raises: ValueError after the final one.
        """
        self.answer(outputs.items(), is_final=is_final, parameters=parameters)

    def answer(self, outputs: Any, *, is_final: bool = True, parameters: Any = None, at_once: bool = False) -> None:
        """`respond` with pairs of names and arrays; `at_once` does not wait for the others of the execution.

        Raises: ValueError after the final one.
        """
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
            packed, error = [], (failure.code.value, failure.message)
        except ArenaFullError as failure:
            packed, error = [], (ErrorCode.UNAVAILABLE.value, str(failure))
        self.is_answered = True
        self.is_over = is_final
        execution.output_ns += monotonic_ns() - begin_ns
        execution.take((self._number, is_final, packed, parameters or None, error), at_once)

    def finish(self) -> None:
        """End it without another answer.

        Raises: ValueError after the final one.
        """
        if self.is_over:
            raise ValueError("the request has been answered already")
        self.is_over = True
        self._execution.take((self._number, True, None, None, None), at_once=True)

    def fail(self, error: EngineError, *, is_final: bool = True, at_once: bool = False) -> None:
        """Answer with an error; nothing happens after the final answer."""
        if not self.is_over:
            self.is_answered = True
            self.is_over = is_final
            failure = (error.code.value, error.message)
            self._execution.take((self._number, is_final, None, None, failure), at_once)

    def reschedule(self) -> None:
        """Have it run again, as if it came anew."""
        self.is_over = True
        self._execution.take((self._number, False, None, None, None), at_once=False)

    def abandon(self) -> None:
        """Nobody holds it any more, or ever will answer."""
        if self.is_over:
            return
        if self._execution.instance.signature.is_decoupled or self.is_answered:
            self.finish()
        else:
            model = self._execution.instance.model
            self.fail(internal(f"model '{model}' has let go of the request without a response"), at_once=True)

    def _keep_state(self, instance: ExecutionContext, outputs: dict[str, Array]) -> Any:
        names = instance.states.outputs.keys() & outputs.keys()
        instance.states.keep(
            self.state_key,
            {name: outputs[name] for name in names},
            sequence=self.sequence_id,
            is_end=self.sequence_end,
        )
        return [(name, array) for name, array in outputs.items() if name in instance.signature.outputs]


class Execution:
    """Answers that come while it runs go back together, at its end; those of decoupled models, and late ones, alone."""

    __slots__ = ("_number", "_responses", "_started_ns", "input_ns", "instance", "output_ns")

    def __init__(self, instance: ExecutionContext, number: int) -> None:
        self.instance = instance
        self._number = number
        self._responses: list[Response] | None = None if instance.signature.is_decoupled else []
        self._started_ns = 0
        self.input_ns = 0
        self.output_ns = 0  # what answers took to be written down so far

    def run(self, packed: list[tuple[Any, ...]], received_ns: int) -> None:
        """Have the backend answer these requests, and tell the host that it is done."""
        instance = self.instance
        requests: list[Any] = []
        for each in packed:
            try:
                requests.append(ExecutionRequest(self, each))
            except Exception as error:  # one that cannot be read is no reason to end, and the others are none the less
                failure = error if isinstance(error, EngineError) else internal(instance.failure_text(error))
                self.take((each[0], True, None, None, (failure.code.value, failure.message)), at_once=False)
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
        requests.clear()  # those that nobody holds are answered by this
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
        """An answer on its way back."""
        if response[1]:
            self.instance.connection.forget(response[0])
        if self._responses is None or at_once:
            inference_ns = monotonic_ns() - self._started_ns - self.output_ns
            self.instance.connection.send(protocol.RESPONSE, *response, self.input_ns, inference_ns, self.output_ns)
        else:
            self._responses.append(response)


def fail_all(requests: list[ExecutionRequest], error: EngineError) -> None:
    """Answer those that have no answer yet."""
    for request in requests:
        request.fail(error)
