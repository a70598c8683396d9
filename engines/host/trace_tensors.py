"""A tensor as Triton writes it into a trace: its data as one text.

Source: Triton server `src/tracer.cc` TraceTensorActivity; FP16 and BF16 have no data there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod

from engines.core.messages import Raw, SharedMemory, TensorData

_FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}


def written_tensor(tensor: TensorData) -> dict[str, str]:
    """The record of a tensor; one in shared memory goes without its data."""
    data = tensor.data
    elements = () if isinstance(data, SharedMemory) else _elements(tensor.datatype, data, prod(tensor.shape))
    return {
        "name": tensor.name,
        "data": ",".join(elements),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype,
    }


def _elements(datatype: str, data: Raw, count: int) -> Iterator[str]:
    if datatype == "BYTES":
        at = 0
        for _ in range(count):
            length = int.from_bytes(data[at : at + 4], "little")
            yield f'"{bytes(data[at + 4 : at + 4 + length]).decode("utf-8", "replace")}"'
            at += 4 + length
    elif datatype in _FORMATS:
        for value in struct.unpack(f"<{count}{_FORMATS[datatype]}", data):
            yield f"{value:g}" if isinstance(value, float) else str(int(value))
