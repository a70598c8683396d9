"""The outputs of a model's configuration, and the check of the model's arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from engines.core.datatypes import Array, datatype_of
from engines.core.errors import internal
from gateway.protocol.datatypes import config_datatype

_log = logging.getLogger(__name__)

# A parameter that decides on outputs that do not fit the configuration: true is an error, false is no warning either.
# Without it a python model's are handed on as they are, as in Triton, and others are errors.
CHECK_PARAMETER = "CHECK_OUTPUTS"
_OFF = {"0", "false", "off", "no"}
_LENIENT_BACKEND = "python"

# Takes the description of an output that does not fit. Raises: EngineError where that is an error.
Misfit = Callable[[str], None]


class OutputRule:
    """The required datatype and shape of an output, before a reshape for clients: `dims` without the batch axis, -1 for
    any size."""

    __slots__ = ("_misfit", "batches", "datatype", "dims", "is_open", "model", "name", "rank")

    def __init__(self, config: Any, output: Any, misfit: Misfit) -> None:
        self.model: str = config.name
        self.name: str = output.name
        self.datatype = config_datatype(output.data_type)
        self.batches: bool = config.max_batch_size > 0
        self.dims: tuple[int, ...] = tuple(output.reshape.shape) if output.HasField("reshape") else tuple(output.dims)
        self.rank: int = len(self.dims) + self.batches
        self.is_open = all(dim == -1 for dim in self.dims)
        self._misfit = misfit

    def accept(self, array: Array) -> str:
        """The array's datatype. Raises: EngineError if it is none, or not the configured one where that counts."""
        datatype = datatype_of(array)
        if datatype != self.datatype:
            if datatype == "UINT16" and self.datatype == "BF16":
                datatype = "BF16"
            elif datatype is None:
                raise internal(f"the datatype {array.dtype} of output '{self.name}' is none of Triton's")
            else:
                self._misfit(
                    f"unexpected datatype {_type_name(datatype)} for inference output '{self.name}', expecting "
                    f"{_type_name(self.datatype)}"
                )
        shape = array.shape
        if not self._fits(shape):
            expected = ",".join(map(str, (-1, *self.dims) if self.batches else self.dims))
            self._misfit(
                f"unexpected shape for output '{self.name}' for model '{self.model}'. Expected [{expected}], got "
                f"[{','.join(map(str, shape))}]"
            )
        return datatype

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if len(shape) != self.rank or self.is_open:
            return len(shape) == self.rank
        sizes = shape[1:] if self.batches else shape
        return all(dim in (size, -1) for dim, size in zip(self.dims, sizes, strict=True))


class Signature:
    """A model's tensors by name."""

    def __init__(self, config: Any) -> None:
        self.outputs = {output.name: OutputRule(config, output, _misfit_of(config)) for output in config.output}
        self.output_names = tuple(self.outputs)
        self.is_decoupled: bool = config.model_transaction_policy.decoupled


def _misfit_of(config: Any) -> Misfit:
    parameters = config.parameters
    # Checked with `in` first: a lookup adds an entry to a protobuf map.
    if CHECK_PARAMETER in parameters:
        return _ignore if parameters[CHECK_PARAMETER].string_value.lower() in _OFF else _refuse
    return _Warning() if config.backend == _LENIENT_BACKEND else _refuse


def _refuse(text: str) -> None:
    """Raises: EngineError."""
    raise internal(text)


def _ignore(text: str) -> None:
    """Outputs are handed on as they are."""


class _Warning:
    """Logs the first misfit of an output."""

    _is_over = False

    def __call__(self, text: str) -> None:
        if not self._is_over:
            self._is_over = True
            _log.warning(
                "%s; it is handed on as it is, the model's parameter %s: true makes it an error", text, CHECK_PARAMETER
            )


def _type_name(datatype: str) -> str:
    return f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}"
