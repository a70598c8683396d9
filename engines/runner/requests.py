"""A request as a backend sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any, Protocol

from engines.backends.interfaces import Array
from engines.core.errors import EngineError, ErrorCode, internal
from engines.core.messages import Scalar, SharedMemory
from engines.ipc.arena import ArenaFullError
from engines.runner.connection import HostConnection

Response = tuple[int, bool, Any, Any, Any]  # request, whether it is the last, outputs, parameters, error
Places = dict[str, SharedMemory]
SEQUENCE_START, SEQUENCE_END = 1, 2


class RequestOrigin(Protocol):
    """The instance that a request is at."""

    connection: HostConnection
    signature: Any
    states: Any
    model: str


class ResponsePath(Protocol):
    """The execution that a request is part of: the way back for its answers."""

    instance: Any  # a RequestOrigin
    output_ns: int

    def take(self, response: Response, at_once: bool) -> None: ...


class ExecutionRequest:
    """One request of an execution, to be answered once, or as often as it likes where the model is decoupled.

    One that nobody holds any more ends by itself: with an error where an answer is due.
    """

    __slots__ = (
        "_execution",
        "_number",
        "_places",
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

    def __init__(self, execution: ResponsePath, packed: tuple[Any, ...]) -> None:
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
        ) = packed
        instance: RequestOrigin = execution.instance
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
        home: RequestOrigin = self._execution.instance
        return home.connection.is_cancelled(self._number)

    def when_cancelled(self, told: Callable[[], None]) -> None:
        """Have `told` called once, on another thread, where nobody wants the answer any more; see `HostConnection`."""
        home: RequestOrigin = self._execution.instance
        home.connection.when_cancelled(self._number, told)
        if self.is_over:  # meanwhile
            home.connection.forget(self._number)

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
        instance: RequestOrigin = execution.instance
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

    def _keep_state(self, instance: RequestOrigin, outputs: dict[str, Array]) -> Any:
        names = instance.states.outputs.keys() & outputs.keys()
        instance.states.keep(
            self.state_key,
            {name: outputs[name] for name in names},
            sequence=self.sequence_id,
            is_end=self.sequence_end,
        )
        return [(name, array) for name, array in outputs.items() if name in instance.signature.outputs]
