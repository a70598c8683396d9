"""One execution: requests that run together, and their answers on the way back."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Protocol

from engines.backends.interfaces import Backend
from engines.core.errors import EngineError, internal
from engines.ipc import message_kinds
from engines.runner.requests import ExecutionRequest, RequestOrigin, Response


class ExecutionContext(RequestOrigin, Protocol):
    """The instance that runs it."""

    backend: Backend

    def failure_text(self, error: BaseException) -> str: ...

    def memory_bytes(self) -> int: ...


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
            message_kinds.DONE,
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
            self.instance.connection.send(
                message_kinds.RESPONSE, *response, self.input_ns, inference_ns, self.output_ns
            )
        else:
            self._responses.append(response)


def fail_all(requests: list[ExecutionRequest], error: EngineError) -> None:
    """Answer those that have no answer yet."""
    for request in requests:
        request.fail(error)
