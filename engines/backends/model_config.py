"""The parts of a model's configuration that backends read: tensors, parameters, the share of the cores.

A configuration with open tensors is completed from the model's file, by the rules of Triton's onnxruntime backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from engines.backends.model_files import last_version
from engines.core.errors import EngineError, ErrorCode, invalid
from engines.core.processes import available_cores
from gateway.protocol.datatypes import CONFIG_DATATYPES, config_datatype

_TRUE, _FALSE = {"true", "1", "on", "yes"}, {"false", "0", "off", "no"}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the configuration. `dims` is the shape that the model sees (after `reshape`), without the batch axis:
    -1 stands for any size, None for any shape."""

    name: str
    datatype: str
    dims: tuple[int, ...] | None
    is_optional: bool = False

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape (without the batch axis) matches."""
        if self.dims is None:
            return True
        return len(shape) == len(self.dims) and all(
            want in (-1, has) for want, has in zip(self.dims, shape, strict=True)
        )


@dataclass(frozen=True)
class ModelSignature:
    """A model's tensors in the order of its configuration. `max_batch_size` is 0 for a model that does not batch: then
    no tensor has a batch axis. Sequence controls and state inputs follow the other inputs; state outputs are separate,
    because clients do not always receive them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state_outputs: tuple[TensorSpec, ...] = ()
    max_batch_size: int = 0

    @cached_property
    def input_by_name(self) -> dict[str, TensorSpec]:
        return {tensor.name: tensor for tensor in self.inputs}

    @cached_property
    def output_by_name(self) -> dict[str, TensorSpec]:
        """State outputs and outputs: a model returns both."""
        return {tensor.name: tensor for tensor in (*self.state_outputs, *self.outputs)}

    @cached_property
    def state_names(self) -> frozenset[str]:
        """Outputs that every run returns: the host stores them for the sequence's next step."""
        return frozenset(tensor.name for tensor in self.state_outputs)

    @classmethod
    def of(cls, config: Any) -> ModelSignature:
        """Read a complete `inference.ModelConfig` message.

        Raises: EngineError for ragged batches: these backends batch requests of one shape.
        """
        if config.batch_input or config.batch_output or any(tensor.allow_ragged_batch for tensor in config.input):
            raise EngineError(
                ErrorCode.UNSUPPORTED,
                f"model '{config.name}' has ragged batches (allow_ragged_batch, batch_input, batch_output), which the "
                f"{config.backend or 'model'} backend of this host does not have",
            )
        sequences = config.sequence_batching
        controls = [TensorSpec(control.name, _control_datatype(control), None) for control in sequences.control_input]
        states = sequences.state
        state_inputs = [TensorSpec(s.input_name, config_datatype(s.data_type), tuple(s.dims)) for s in states]
        return cls(
            inputs=tuple([_tensor(tensor) for tensor in config.input] + controls + state_inputs),
            outputs=tuple(_tensor(tensor) for tensor in config.output),
            state_outputs=tuple(TensorSpec(s.output_name, config_datatype(s.data_type), tuple(s.dims)) for s in states),
            max_batch_size=config.max_batch_size,
        )


def _tensor(tensor: Any) -> TensorSpec:
    dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    return TensorSpec(tensor.name, config_datatype(tensor.data_type), tuple(dims), getattr(tensor, "optional", False))


def _control_datatype(control: Any) -> str:
    for use in control.control:
        if use.data_type:
            return config_datatype(use.data_type)
        if use.int32_false_true:
            return "INT32"
        if use.fp32_false_true:
            return "FP32"
        if use.bool_false_true:
            return "BOOL"
    return "INT32"


class Parameters:
    """The parameters of a configuration as typed values. Raises: EngineError for a value of another type."""

    def __init__(self, config: Any) -> None:
        self._values: dict[str, str] = {key: value.string_value for key, value in config.parameters.items()}

    def text(self, key: str, default: str = "") -> str:
        return self._values.get(key, default)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if value.strip().lower() in _TRUE:
            return True
        if value.strip().lower() in _FALSE:
            return False
        raise invalid(f"parameter '{key}' is '{value}', and has to be true or false")

    def number(self, key: str, default: int = 0) -> int:
        value = self._values.get(key)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise invalid(f"parameter '{key}' is '{value}', and has to be a whole number") from None

    def one_of(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """One of `choices`, in any case."""
        value = self._values.get(key, default)
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise invalid(f"parameter '{key}' is '{value}', and has to be one of {', '.join(choices)}")


# Of models that can batch (Triton: --backend-config=NAME,default-max-batch-size=N).
DEFAULT_MAX_BATCH_SIZE = 4


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in the model's file: `dims` with the batch axis if there is one, -1 for any size."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileTensors:
    """The tensors in a model's file, and the max_batch_size of a model that batches without a limit."""

    inputs: Sequence[FileTensor]
    outputs: Sequence[FileTensor]
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE


def is_complete(config: Any) -> bool:
    return bool((config.input or config.batch_input) and config.output)


def complete_from(config: Any, directory: Path, read: Callable[[Any, Path], FileTensors]) -> None:
    """Complete a configuration with open inputs or outputs from the model's highest version: `read` returns the tensors
    of its file. Raises: EngineError."""
    if not is_complete(config):
        fill_in(config, read(config, last_version(directory)))


def fill_in(config: Any, declared: FileTensors) -> None:
    """Complete a configuration in place from the tensors of the model's file; configured tensors stay unchanged.

    A model batches if the first axis of every tensor is open.
    Raises: EngineError if the configuration sets a batch size for a model that does not batch.
    """
    inputs, outputs = declared.inputs, declared.outputs
    batches = all(tensor.dims[:1] == (-1,) for tensor in (*inputs, *outputs))
    if batches:
        if config.max_batch_size == 0:
            config.max_batch_size = max(declared.default_max_batch_size, 0)
        if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    elif config.max_batch_size:
        raise invalid(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    if not config.input and not config.batch_input:
        _fill(config.input, inputs, config.max_batch_size)
    if not config.output:
        _fill(config.output, outputs, config.max_batch_size)


def _fill(tensors: Any, declared: Sequence[FileTensor], max_batch_size: int) -> None:
    for tensor in declared:
        dims = tensor.dims[1 if max_batch_size else 0 :]
        added = tensors.add(name=tensor.name, data_type=CONFIG_DATATYPES.index(tensor.datatype), dims=dims or (1,))
        if not dims and max_batch_size:
            added.reshape.SetInParent()  # a scalar in the model is one element in the protocol


def default_max_batch_size(options: Mapping[str, str]) -> int:
    """--backend-config=NAME,default-max-batch-size=N. Raises: EngineError if it is not a number."""
    value = options.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
    if not value.isdecimal():
        raise invalid(f"backend-config default-max-batch-size is '{value}', and has to be a whole number")
    return int(value)


def fair_share_of_cores(config: Any) -> int:
    """Threads for one instance: all instances of the model together use each core once."""
    instances = sum(max(group.count, 1) for group in config.instance_group) or 1
    return max(available_cores() // instances, 1)
