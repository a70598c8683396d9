"""Which calls may share a batch.

Source: Triton core `scheduler_utils.cc` (RequiredEqualInputs) and `backend_model.cc` (enforce_equal_shape_tensors).
"""

from __future__ import annotations

from typing import Any

from engines.core.calls import InferenceCall
from engines.core.messages import Raw, SharedMemory

# Of each input that counts, by name: its shape without the batch axis (None where any will do), and its data where that
# has to be the same too. Calls with equal ones may share a batch.
Shapes = dict[str, tuple[tuple[int, ...] | None, Raw | SharedMemory | None]]


class SameShapes:
    """An input of variable shape must have the same one throughout a batch, unless it may be ragged; a shape tensor the
    same content; and where the model has optional inputs, all calls must bring the same ones."""

    __slots__ = ("_compares_data", "_first_axis", "_has_optional", "is_needed")

    def __init__(self, config: Any) -> None:
        self._compares_data = {
            i.name: i.is_shape_tensor
            for i in config.input
            if i.is_shape_tensor or (-1 in i.dims and not i.allow_ragged_batch)
        }
        self._has_optional = any(i.optional for i in config.input)
        self._first_axis = 1 if config.max_batch_size > 0 else 0
        self.is_needed = bool(self._compares_data) or self._has_optional

    def of(self, call: InferenceCall) -> Shapes:
        shapes: Shapes = {}
        for tensor in call.request.inputs:
            compares_data = self._compares_data.get(tensor.name)
            if compares_data is not None:
                shapes[tensor.name] = (tensor.shape[self._first_axis :], tensor.data if compares_data else None)
            elif self._has_optional:
                shapes[tensor.name] = (None, None)
        return shapes
