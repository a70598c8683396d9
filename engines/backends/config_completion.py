"""How a configuration is completed, whichever the framework: Triton's rules, as its onnxruntime backend has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.errors import invalid
from gateway.protocol.datatypes import CONFIG_DATATYPES

# What a model that can batch gets where nobody says more (Triton: --backend-config=NAME,default-max-batch-size=N).
DEFAULT_MAX_BATCH_SIZE = 4


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor as a model's file tells it: `dims` with the batch axis where there is one, -1 for any size."""

    name: str
    datatype: str
    dims: tuple[int, ...]


def is_complete(config: Any) -> bool:
    return bool((config.input or config.batch_input) and config.output)


def fill_in(config: Any, inputs: Sequence[Found], outputs: Sequence[Found], default_max_batch_size: int) -> None:
    """Complete a configuration from a model's tensors, in place. Those that it has already stay as they are.

    A model batches where the first axis of every tensor is open.
    Raises: EngineError where it does not, and the configuration says that it does.
    """
    batches = all(tensor.dims[:1] == (-1,) for tensor in (*inputs, *outputs))
    if batches:
        if config.max_batch_size == 0:
            config.max_batch_size = max(default_max_batch_size, 0)
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


def _fill(tensors: Any, found: Sequence[Found], max_batch_size: int) -> None:
    for tensor in found:
        dims = tensor.dims[1 if max_batch_size else 0 :]
        added = tensors.add(name=tensor.name, data_type=CONFIG_DATATYPES.index(tensor.datatype), dims=dims or (1,))
        if not dims and max_batch_size:
            added.reshape.SetInParent()  # the model has a scalar where the protocol has one element


def default_max_batch_size(options: Mapping[str, str]) -> int:
    """--backend-config=NAME,default-max-batch-size=N.

    Raises: EngineError where it is no number.
    """
    value = options.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
    if not value.isdecimal():
        raise invalid(f"backend-config default-max-batch-size is '{value}', and has to be a whole number")
    return int(value)
