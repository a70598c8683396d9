"""Checks requests against their model's configuration, with Triton's errors.

A common request is checked in one pass over rules prepared when the model is loaded. A request that does not pass is
checked again in Triton's order, which finds its error.
Source: Triton core `src/infer_request.cc`, InferenceRequest::Normalize.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from engines.core.errors import invalid
from engines.core.messages import InferRequest, Raw, SharedMemory, TensorData
from gateway.protocol.datatypes import ELEMENT_BYTES, config_datatype

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_LENGTH_BYTES = 4
# Shapes cached for each input; further ones are checked each time.
_MAX_SIZES = 256


class InputRule:
    """The rule of one input. `dims` lack the batch axis, -1 is any size; `element_bytes` is 0 for BYTES."""

    def __init__(self, config: Any) -> None:
        self.datatype = config_datatype(config.data_type)
        self.dims = tuple(config.dims)
        self.element_bytes = ELEMENT_BYTES.get(self.datatype, 0)
        self.is_required = not config.optional
        self.is_shape: bool = config.is_shape_tensor  # of TensorRT: it has no batch axis
        self.is_opaque: bool = config.is_non_linear_format_io  # only the model knows the layout of its bytes
        # Valid shapes, and the size of their data: bytes, or elements of BYTES.
        self.sizes: dict[tuple[int, ...], int] = {}

    def fits(self, dims: Sequence[int]) -> bool:
        if len(dims) != len(self.dims):
            return False
        return all(expected in (-1, got) for expected, got in zip(self.dims, dims, strict=True))


class RequestCheck:
    """The check of one model version's requests."""

    def __init__(self, config: Any) -> None:
        self._model: str = config.name
        self._max_batch_size: int = config.max_batch_size
        self._rules = {each.name: InputRule(each) for each in config.input}
        self._outputs = frozenset(output.name for output in config.output)
        self._num_required = sum(rule.is_required for rule in self._rules.values())
        self._is_plain = not any(rule.is_shape or rule.is_opaque for rule in self._rules.values())

    def __call__(self, request: InferRequest) -> int:
        """The batch size of a request; 1 where the model does not batch. Raises: EngineError, INVALID_ARG."""
        batch_size = self._batch_size(request)
        return self._explain(request) if batch_size is None else batch_size

    def _batch_size(self, request: InferRequest) -> int | None:
        """None for an invalid or uncommon request."""
        inputs = request.inputs
        count = len(inputs)
        rules = self._rules
        if not (self._num_required <= count <= len(rules) and self._is_plain):
            return None
        if count > 1 and len({tensor.name for tensor in inputs}) != count:
            return None
        if request.outputs and not self._outputs.issuperset([output.name for output in request.outputs]):
            return None
        max_batch_size = self._max_batch_size
        batch_size = 0
        for tensor in inputs:
            rule = rules.get(tensor.name)
            shape = tensor.shape
            if rule is None or rule.datatype != tensor.datatype:
                return None
            size = rule.sizes.get(shape)
            if size is None and (size := self._data_size(rule, shape)) is None:
                return None
            if max_batch_size and shape[0] != batch_size:
                if batch_size:
                    return None
                batch_size = shape[0]
            if not _is_sized(tensor.data, size, rule.element_bytes):
                return None
        if not max_batch_size:
            return 1
        return batch_size if 0 < batch_size <= max_batch_size else None

    def _data_size(self, rule: InputRule, shape: tuple[int, ...]) -> int | None:
        """The size of data of this shape; None for an invalid shape or an empty batch."""
        dims = shape
        if self._max_batch_size:
            if not shape or not shape[0]:
                return None
            dims = shape[1:]
        if min(shape, default=0) < 0 or not rule.fits(dims):
            return None
        size = prod(shape) * (rule.element_bytes or 1)
        if len(rule.sizes) < _MAX_SIZES:
            rule.sizes[shape] = size
        return size

    def _explain(self, request: InferRequest) -> int:
        """Check in Triton's order. Triton mostly iterates its hash maps in reverse.

        Raises: EngineError, INVALID_ARG.
        """
        prefix = f"[request id: {request.id or '<id_unknown>'}] "
        model = self._model
        seen: set[str] = set()
        for tensor in request.inputs:
            if tensor.name in seen:
                raise invalid(f"{prefix}input '{tensor.name}' already exists in request")
            seen.add(tensor.name)
        for output in request.outputs:
            if output.name not in self._outputs:
                raise invalid(f"unexpected inference output '{output.name}' for model '{model}'")
        if not self._num_required <= len(request.inputs) <= len(self._rules):
            raise invalid(prefix + self._wrong_number(request.inputs))
        inputs = request.inputs[::-1]
        for tensor in inputs:
            if tensor.name not in self._rules:
                raise invalid(f"unexpected inference input '{tensor.name}' for model '{model}'")
        batch_size = 0
        if self._max_batch_size:
            batch_size = self._common_batch_size(inputs, prefix)
        for tensor in inputs:
            self._check(tensor, self._rules[tensor.name], batch_size, prefix)
        return max(1, batch_size)

    def _wrong_number(self, inputs: Sequence[TensorData]) -> str:
        names = [tensor.name for tensor in inputs]
        missing = [name for name, rule in self._rules.items() if rule.is_required and name not in names]
        if self._num_required == len(self._rules):
            expected = f"expected {len(self._rules)} inputs"
        else:
            expected = f"expected number of inputs between {self._num_required} and {len(self._rules)}"
        return (
            f"{expected} but got {len(names)} inputs for model '{self._model}'. Got input(s) "
            f"[{_quoted(reversed(names))}], but missing required input(s) "
            f"{f'[{_quoted(missing)}]' if missing else ']'}. Please provide all required input(s)."
        )

    def _common_batch_size(self, inputs: Iterable[TensorData], prefix: str) -> int:
        batch_size = 0
        for tensor in inputs:
            if self._rules[tensor.name].is_shape:
                continue
            if not tensor.shape:
                raise invalid(
                    f"{prefix}input '{tensor.name}' has no shape but model requires batch dimension for '{self._model}'"
                )
            if batch_size == 0:
                batch_size = tensor.shape[0]
            elif tensor.shape[0] != batch_size:
                raise invalid(
                    f"{prefix}input '{tensor.name}' batch size does not match other inputs for '{self._model}'"
                )
        if batch_size > self._max_batch_size:
            raise invalid(f"{prefix}inference request batch-size must be <= {self._max_batch_size} for '{self._model}'")
        return batch_size

    def _check(self, tensor: TensorData, rule: InputRule, batch_size: int, prefix: str) -> None:
        name, model, shape = tensor.name, self._model, tensor.shape
        if tensor.datatype != rule.datatype:
            raise invalid(
                f"{prefix}inference input '{name}' data-type is '{tensor.datatype}', but model '{model}' expects "
                f"'{rule.datatype}'"
            )
        dims = shape[1:] if self._max_batch_size and not rule.is_shape else shape
        if len(dims) == len(rule.dims) and min(dims, default=0) < 0:
            raise invalid(
                f"{prefix}All input dimensions should be specified for input '{name}' for model '{model}', got "
                f"{_listed(shape)}"
            )
        if not rule.fits(dims):
            expected = (-1, *rule.dims) if self._max_batch_size else rule.dims
            raise invalid(
                f"{prefix}unexpected shape for input '{name}' for model '{model}'. Expected {_listed(expected)}, got "
                f"{_listed(shape)}. {_BATCH_NOTE if self._max_batch_size else ''}"
            )
        if rule.is_opaque:
            return
        # Triton takes a batch size of 0 for no batch axis.
        elements = prod(shape if rule.is_shape else (batch_size, *dims) if batch_size else dims)
        if not rule.element_bytes:
            _check_bytes(tensor, elements, model, prefix)
        elif (size := _num_bytes(tensor.data)) != elements * rule.element_bytes:
            raise invalid(
                f"{prefix}input byte size mismatch for input '{name}' for model '{model}'. Expected "
                f"{elements * rule.element_bytes}, got {size}"
            )


def _num_bytes(data: Raw | SharedMemory) -> int:
    if isinstance(data, bytes):
        return len(data)
    return data.nbytes if isinstance(data, memoryview) else data.num_bytes


def _is_sized(data: Raw | SharedMemory, expected: int, element_bytes: int) -> bool:
    """Whether data has the expected number of bytes, or of elements of BYTES."""
    if element_bytes:
        return _num_bytes(data) == expected
    if isinstance(data, SharedMemory):
        return True  # the instance reads it
    size = len(data)
    if expected == 1:
        return size >= _LENGTH_BYTES and int.from_bytes(data[:_LENGTH_BYTES], "little") == size - _LENGTH_BYTES
    return _walk(data, expected) == (expected, size)


def _walk(data: Raw, max_elements: int) -> tuple[int, int]:
    """The number of complete elements of BYTES, up to a maximum, and the end of the last one."""
    at, size, count = 0, len(data), 0
    while count < max_elements and at + _LENGTH_BYTES <= size:
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        if end > size:
            break
        at, count = end, count + 1
    return count, at


def _check_bytes(tensor: TensorData, elements: int, model: str, prefix: str) -> None:
    data, name = tensor.data, tensor.name
    if isinstance(data, SharedMemory):
        return
    count, at = _walk(data, elements)
    rest = len(data) - at
    if count == elements and not rest:
        return
    if 0 < rest < _LENGTH_BYTES:
        raise invalid(
            f"{prefix}incomplete string length indicator for inference input '{name}' for model '{model}', expecting "
            f"{_LENGTH_BYTES} bytes but only {rest} bytes available. Please make sure the string length indicator is "
            "in one buffer."
        )
    if count == elements:
        raise invalid(
            f"{prefix}unexpected number of string elements {count + 1} for inference input '{name}' for model "
            f"'{model}', expecting {elements}"
        )
    if rest and count + 1 == elements:  # in Triton an error of its backends
        length = int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        raise invalid(
            f"incomplete string data for inference input '{name}', expecting string of length {length} but only "
            f"{rest - _LENGTH_BYTES} bytes available"
        )
    raise invalid(
        f"{prefix}expected {elements} string elements for inference input '{name}' for model '{model}', got "
        f"{count + bool(rest)}"
    )


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _listed(dims: Iterable[int]) -> str:
    return f"[{','.join(map(str, dims))}]"
