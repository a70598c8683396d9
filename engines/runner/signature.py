"""The outputs of a model's configuration, and the check of the model's arrays."""

from __future__ import annotations

from typing import Any

from engines.core.datatypes import Array, datatype_of
from engines.core.errors import internal
from gateway.protocol.datatypes import config_datatype

# A parameter that turns the check off, as in Triton.
CHECK_PARAMETER = "CHECK_OUTPUTS"
_OFF = {"0", "false", "off", "no"}


class OutputRule:
    """The required datatype and shape of an output, before a reshape for clients: `dims` without the batch axis, -1 for
    any size."""

    __slots__ = ("batches", "checks", "datatype", "dims", "is_open", "model", "name", "rank")

    def __init__(self, config: Any, output: Any, checks: bool) -> None:
        self.model: str = config.name
        self.name: str = output.name
        self.datatype = config_datatype(output.data_type)
        self.batches: bool = config.max_batch_size > 0
        self.dims: tuple[int, ...] = tuple(output.reshape.shape) if output.HasField("reshape") else tuple(output.dims)
        self.rank: int = len(self.dims) + self.batches
        self.is_open = all(dim == -1 for dim in self.dims)
        self.checks = checks

    def accept(self, array: Array) -> str:
        """The array's datatype. Raises: EngineError if it is not the configured one."""
        datatype = datatype_of(array)
        if datatype != self.datatype:
            if datatype == "UINT16" and self.datatype == "BF16":
                datatype = "BF16"
            elif datatype is None:
                raise internal(f"the datatype {array.dtype} of output '{self.name}' is none of Triton's")
            elif self.checks:
                raise internal(
                    f"unexpected datatype {_type_name(datatype)} for inference output '{self.name}', expecting "
                    f"{_type_name(self.datatype)}"
                )
        shape = array.shape
        if self.checks and not self._fits(shape):
            expected = ",".join(map(str, (-1, *self.dims) if self.batches else self.dims))
            raise internal(
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
        parameters = config.parameters
        # Checked with `in` first: a lookup adds an entry to a protobuf map.
        checks = CHECK_PARAMETER not in parameters or parameters[CHECK_PARAMETER].string_value.lower() not in _OFF
        self.outputs = {output.name: OutputRule(config, output, checks) for output in config.output}
        self.output_names = tuple(self.outputs)
        self.is_decoupled: bool = config.model_transaction_policy.decoupled


def _type_name(datatype: str) -> str:
    return f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}"
