"""Control inputs of the sequence batcher: the position of a request in its sequence, and the sequence's id.

Source: model_config.proto (ModelSequenceBatching.Control); Triton core `sequence_batch_scheduler.cc`
(SetControlTensors).
"""

from __future__ import annotations

import struct
from itertools import product
from typing import Any

from engines.core.errors import invalid
from engines.core.messages import InferRequest, TensorData

START, READY, END, CORRID = range(4)  # ModelSequenceBatching.Control.Kind

# How a number is written as a correlation id: its datatype, and how many of its bytes that has. By DataType's number.
_ID_DATATYPES = {4: ("UINT32", 4), 5: ("UINT64", 8), 8: ("INT32", 4), 9: ("INT64", 8)}
_TYPE_STRING = 13


class Controls:
    """The control inputs of a model, of shape [1, 1] if the model batches, else [1]."""

    __slots__ = ("_flags", "_id_datatype", "_id_name", "_shape")

    def __init__(self, config: Any) -> None:
        self._shape = (1, 1) if config.max_batch_size > 0 else (1,)
        self._id_name = ""
        self._id_datatype = 0
        values: dict[int, tuple[TensorData, TensorData]] = {}
        for control_input in config.sequence_batching.control_input:
            for control in control_input.control:
                if control.kind == CORRID:
                    self._id_name, self._id_datatype = control_input.name, control.data_type
                else:
                    values[control.kind] = self._false_and_true(control_input.name, control)
        kinds = (START, END, READY)
        self._flags = {
            flags: tuple(values[kind][flag] for kind, flag in zip(kinds, flags, strict=True) if kind in values)
            for flags in product((False, True), repeat=len(kinds))
        }

    def of(self, request: InferRequest) -> tuple[TensorData, ...]:
        """Raises: EngineError if the model's CORRID cannot hold the request's sequence id."""
        flags = self._flags[request.sequence_start, request.sequence_end, True]
        return (*flags, self._id(request)) if self._id_name else flags

    def idle(self) -> tuple[TensorData, ...]:
        """The controls of a batch row without a request."""
        flags = self._flags[False, False, False]
        idle_request = InferRequest("", sequence_id="" if self._id_datatype == _TYPE_STRING else 0)
        return (*flags, self._id(idle_request)) if self._id_name else flags

    def _false_and_true(self, name: str, control: Any) -> tuple[TensorData, TensorData]:
        if len(control.int32_false_true) == 2:
            datatype, form, values = "INT32", "<i", control.int32_false_true
        elif len(control.fp32_false_true) == 2:
            datatype, form, values = "FP32", "<f", control.fp32_false_true
        else:
            datatype, form, values = "BOOL", "<?", control.bool_false_true or (False, True)
        false, true = (TensorData(name, datatype, self._shape, struct.pack(form, value)) for value in values)
        return false, true

    def _id(self, request: InferRequest) -> TensorData:
        sequence_id = request.sequence_id
        if self._id_datatype == _TYPE_STRING:
            text = str(sequence_id).encode()
            return TensorData(self._id_name, "BYTES", self._shape, struct.pack("<I", len(text)) + text)
        datatype, num_bytes = _ID_DATATYPES.get(self._id_datatype, ("UINT64", 8))
        if isinstance(sequence_id, str):
            raise invalid(
                f"inference request for sequence {sequence_id} to model '{request.model}' must specify a number as "
                f"correlation ID: the model takes it as {datatype}"
            )
        number = (sequence_id & (1 << 64) - 1).to_bytes(8, "little")
        return TensorData(self._id_name, datatype, self._shape, number[:num_bytes])
