"""`InferenceResponse`, and how it reaches its request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engines.backends.python.errors import TritonError, TritonModelException
from engines.backends.python.tensor import Tensor
from engines.core.errors import EngineError, ErrorCode

RESPONSE_COMPLETE_FINAL = 1


class InferenceResponse:
    """Outputs, or an error; `parameters` are a dict of bool, int and str."""

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if tensor.__class__ is not Tensor:
                raise _not_a_tensor(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"the error of an InferenceResponse is a TritonError, not {type(error).__name__}")
        self._output_tensors = list(output_tensors)
        self._error = error
        self._parameters = None if parameters is None else checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._output_tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """As JSON."""
        return json.dumps(self._parameters or {})

    def __repr__(self) -> str:
        return f"<InferenceResponse {self._error or self._output_tensors}>"


def answer(request: Any, response: InferenceResponse, *, is_final: bool, at_once: bool) -> None:
    """Hand a response to the request that it is for."""
    error = response._error
    if error is not None:
        failure = EngineError(ErrorCode(int(error.code())), error.message())
        request.fail(failure, is_final=is_final, at_once=at_once)
        return
    outputs = [(tensor._name, tensor._array) for tensor in response._output_tensors]
    request.answer(outputs, is_final=is_final, parameters=response._parameters, at_once=at_once)


def checked_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters as plain values: a model may have subclasses of them, as numpy's texts are.

    Raises: TritonModelException in Triton's words.
    """
    checked: dict[str, Any] = {}
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, bool | int | str):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        plain = bool if isinstance(value, bool) else int if isinstance(value, int) else str
        checked[str(key)] = plain(value)
    return checked


def _not_a_tensor(value: Any) -> Exception:
    if value is None:
        return TritonModelException("Output tensor for inference response should not be empty.")
    return TypeError(f"the output tensors of an InferenceResponse are Tensors, not {type(value).__name__}")
