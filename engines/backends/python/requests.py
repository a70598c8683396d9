"""`InferenceRequest`: requests to the model, and its own requests to others (BLS)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from engines.backends.python.errors import TritonError, TritonModelException
from engines.backends.python.host_services import session
from engines.backends.python.responses import (
    RESPONSE_COMPLETE_FINAL,
    InferenceResponse,
    answer,
    checked_parameters,
)
from engines.backends.python.tensor import Tensor
from engines.core.datatypes import datatype_of
from engines.core.errors import EngineError
from engines.ipc.host_connection import HostReply

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

SEQUENCE_START, SEQUENCE_END = 1, 2
_REQUIRED = "inputs, requested_output_names and model_name"
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2
MEMORY_GPU, MEMORY_CPU = 0, 1

# Concurrent inferences of a model (`async_exec`).
MAX_CONCURRENT_INFERENCES = 64


class PreferredMemory:
    """The preferred memory of an inference's outputs; here they are always on the CPU."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace that a request belongs to."""

    def __init__(self, context: dict[str, str] | None = None) -> None:
        self._context = context or {}

    def get_context(self) -> str | None:
        """W3C trace context as JSON; None if the request is not traced."""
        return json.dumps(self._context) if self._context else None


class InferenceRequest:
    """A request to another model: inputs, names of outputs, and the model."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Iterable[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        # As in Triton these three have no default, though they follow arguments that have one.
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError(f"__init__(): incompatible constructor arguments: {_REQUIRED} are required")
        if None in (request_id, correlation_id, model_version, flags, timeout):
            raise TypeError("__init__(): incompatible constructor arguments: None is no value of an InferenceRequest")
        self._requested_output_names: Sequence[str] = list(requested_output_names)
        if not all(isinstance(name, str) for name in self._requested_output_names):
            raise TypeError("__init__(): incompatible constructor arguments: requested_output_names are str")
        about = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        if any(tensor is None for tensor in inputs):
            raise TritonModelException(f"Input tensor {about}")
        if "" in self._requested_output_names:
            raise TritonModelException(f"Requested output name {about}")
        if not isinstance(correlation_id, int | str):
            raise TritonModelException("Correlation ID must be integer or string")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._trace = trace or InferenceTrace()
        self._parameters = checked_parameters(parameters or {})

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """Microseconds; 0 if there is none."""
        return self._timeout

    def parameters(self) -> str:
        """As JSON."""
        return json.dumps(self._parameters)

    def trace(self) -> InferenceTrace:
        return self._trace

    def requested_output_names(self) -> set[str]:
        return set(self._requested_output_names)

    def is_cancelled(self) -> bool:
        raise TritonModelException("Cannot determine request cancellation")

    def exec(self, decoupled: bool = False) -> Any:
        """Run the inference: its response, or an iterator over the responses of a decoupled model.

        Raises: TritonModelException outside `execute`.
        """
        if not session.is_executing:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        try:
            answers = self._answers(decoupled)
            return ResponseIterator(answers) if decoupled else _response(next(answers))
        except EngineError as error:
            return InferenceResponse([], TritonError(error.message, error.code.value))

    async def async_exec(self, decoupled: bool = False) -> Any:
        """`exec`, to be awaited. A decoupled model's first response has arrived then, so that others of this model's
        coroutines run meanwhile."""
        import asyncio  # most models do without

        return await asyncio.get_running_loop().run_in_executor(_executor(), self._exec_ahead, decoupled)

    def _exec_ahead(self, decoupled: bool) -> Any:
        result = self.exec(decoupled)
        if isinstance(result, ResponseIterator):
            result.fetch()
        return result

    def _answers(self, decoupled: bool) -> Iterator[HostReply]:
        options: dict[str, Any] = {"id": self._request_id, "timeout_us": self._timeout}
        if self._correlation_id:
            options["sequence_id"] = self._correlation_id
            options["sequence_start"] = bool(self._flags & SEQUENCE_START)
            options["sequence_end"] = bool(self._flags & SEQUENCE_END)
        if self._parameters:
            options["parameters"] = self._parameters
        if self._trace._context:
            options["trace"] = self._trace._context
        inputs = [(each._name, each._datatype or datatype_of(each._array) or "", each._array) for each in self._inputs]
        version = "" if self._model_version < 0 else str(self._model_version)
        outputs = tuple(self._requested_output_names)
        return session.host().infer(self._model_name, version, inputs, outputs, options, is_decoupled=decoupled)


class ResponseIterator:
    """The responses of a decoupled model, as they arrive."""

    def __init__(self, answers: Iterator[HostReply]) -> None:
        self._answers = answers
        self._is_over = False
        self._fetched: HostReply | None = None

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_over:
            raise StopIteration
        answer = self._fetched or self._take()
        self._fetched = None
        self._is_over = answer[4]
        return _response(answer)

    def fetch(self) -> None:
        """Wait for the next response."""
        self._fetched = self._fetched or self._take()

    def _take(self) -> HostReply:
        try:
            return next(self._answers)
        except EngineError as error:
            return {}, {}, {}, error, True

    def cancel(self) -> None:
        self._is_over = True
        if close := getattr(self._answers, "close", None):
            close()


class Incoming(InferenceRequest):
    """A request to this model."""

    has_sender = False
    _release_flags = RELEASE_ALL
    _has_sent = _is_closed = False

    def __init__(self, request: Any, is_decoupled: bool) -> None:
        self.request = request
        self.is_decoupled = is_decoupled
        datatypes = request.datatypes
        self._inputs = [Tensor._of(name, array, datatypes.get(name)) for name, array in request.inputs.items()]
        self._flags = request.flags

    def request_id(self) -> str:
        return str(self.request.id)

    def correlation_id(self) -> int | str:
        value: int | str = self.request.sequence_id
        return value

    def timeout(self) -> int:
        return int(self.request.timeout_us)

    def parameters(self) -> str:
        return json.dumps(self.request.parameters)

    def trace(self) -> InferenceTrace:
        return InferenceTrace(self.request.trace)

    def requested_output_names(self) -> set[str]:
        return set(self.request.wanted)

    def is_cancelled(self) -> bool:
        return bool(self.request.is_cancelled)

    def set_release_flags(self, flags: int) -> None:
        self._release_flags = flags

    @property
    def is_rescheduled(self) -> bool:
        return self._release_flags == RELEASE_RESCHEDULE

    def get_response_sender(self) -> InferenceResponseSender:
        self.has_sender = True
        return InferenceResponseSender(self)

    def exec(self, decoupled: bool = False) -> Any:
        raise TritonModelException("a request that this model is to answer cannot be sent to another one")

    def claim(self, response: InferenceResponse | None, flags: int) -> None:
        """Count a response. Raises: TritonModelException if none may be sent."""
        if not self.is_decoupled:
            if response is not None and self._has_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if response is None and not self._has_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
        if self._is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        self._has_sent = True
        self._is_closed = flags == RESPONSE_COMPLETE_FINAL

    def close(self) -> None:
        """Allow no more responses."""
        self._is_closed = True


class InferenceResponseSender:
    """Sends the responses of one request, from any thread."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the last one with the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL, or only the flag.

        Raises: TritonModelException.
        """
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        self._incoming.claim(response, flags)
        request = self._incoming.request
        if response is not None:
            # A model that is not decoupled has a single response: the flag may follow it.
            is_final = flags == RESPONSE_COMPLETE_FINAL or not self._incoming.is_decoupled
            answer(request, response, is_final=is_final, at_once=True)
        elif not request.is_over:
            request.finish()

    def is_cancelled(self) -> bool:
        return bool(self._incoming.request.is_cancelled)


def _response(answer: HostReply) -> InferenceResponse:
    arrays, datatypes, parameters, error, _ = answer
    failure = None if error is None else TritonError(error.message, error.code.value)
    tensors = [Tensor._of(name, array, datatypes.get(name)) for name, array in arrays.items()]
    result = InferenceResponse(tensors, failure)
    result._parameters = parameters
    return result


@cache
def _executor() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(MAX_CONCURRENT_INFERENCES, "inference")
