"""What a model's configuration says of its tensors, and its parameters as values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engines.core.errors import EngineError, ErrorCode, invalid
from gateway.protocol.datatypes import config_datatype

_TRUE, _FALSE = {"true", "1", "on", "yes"}, {"false", "0", "off", "no"}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor by the configuration. `dims` is the shape as the model has it (a `reshape` applied), without the batch;
    -1 stands for any size, and None for any shape."""

    name: str
    datatype: str
    dims: tuple[int, ...] | None
    is_optional: bool = False

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape (without the batch) is one of these."""
        if self.dims is None:
            return True
        return len(shape) == len(self.dims) and all(
            want in (-1, has) for want, has in zip(self.dims, shape, strict=True)
        )


@dataclass(frozen=True)
class ModelSignature:
    """A model's tensors in the order of its configuration. `max_batch_size` is 0 where the model does not batch: then
    no tensor has a batch axis. Control inputs of sequences and state inputs follow the inputs proper; state outputs
    stand apart, as a client may or may not get them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state_outputs: tuple[TensorSpec, ...] = ()
    max_batch_size: int = 0

    @cached_property
    def input_by_name(self) -> dict[str, TensorSpec]:
        return {tensor.name: tensor for tensor in self.inputs}

    @cached_property
    def output_by_name(self) -> dict[str, TensorSpec]:
        """Outputs and state outputs: a model makes both."""
        return {tensor.name: tensor for tensor in (*self.state_outputs, *self.outputs)}

    @cached_property
    def state_names(self) -> frozenset[str]:
        """Outputs that are made whoever asks: the host keeps them for the sequence's next step."""
        return frozenset(tensor.name for tensor in self.state_outputs)

    @classmethod
    def of(cls, config: Any) -> ModelSignature:
        """Read an `inference.ModelConfig` message that is complete.

        Raises: EngineError where it batches ragged: these backends batch requests of one shape.
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
    """The parameters of a configuration, read as what they mean. Raises: EngineError where one means nothing."""

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
        """One of `choices`, in whatever case it is written."""
        value = self._values.get(key, default)
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise invalid(f"parameter '{key}' is '{value}', and has to be one of {', '.join(choices)}")
