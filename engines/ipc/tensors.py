"""Tensors as they stand in messages: small ones in them, large ones in the sender's arena."""

from __future__ import annotations

from typing import Any

from engines.core.messages import SharedMemory, TensorData
from engines.ipc.arena import Arena, Mapping

PackedTensor = tuple[str, str, tuple[int, ...], Any]

# Up to here a copy through the stream costs less than a block.
INLINE_BYTES = 64 * 1024


def pack(tensor: TensorData, arena: Arena) -> PackedTensor:
    """A tensor for a message.

    Raises: ArenaFullError.
    """
    data: Any = tensor.data
    if data.__class__ is SharedMemory:
        data = (data.key, data.offset, data.num_bytes)
    elif len(data) >= INLINE_BYTES:
        data = arena.put(data)
    return tensor.name, tensor.datatype, tensor.shape, data


def unpack(packed: PackedTensor, mapping: Mapping) -> TensorData:
    """A tensor of a message; its data keeps its block until no view is left."""
    name, datatype, shape, data = packed
    if data.__class__ is not bytes:
        data = SharedMemory(*data) if len(data) == 3 else memoryview(mapping.view(*data)).cast("B")
    return TensorData(name, datatype, shape, data)
