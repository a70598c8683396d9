"""Arrays to torch's tensors and back. BF16 arrays are uint16; BYTES are lists of str, as TorchScript has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from engines.backends.interfaces import Array
from engines.core.errors import invalid


def to_torch(torch: Any, name: str, array: Array, datatype: str, device: Any) -> Any:
    """A tensor on the device; on the CPU it is a view of the array where that can be written to.

    Raises: EngineError for strings that are no UTF-8, or of another shape than [n] (or [n, 1]).
    """
    if array.dtype == object:
        return _strings(name, array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or not array.flags.c_contiguous:
        # What a client lent us must not change, whatever the model does in place.
        array = array.copy()
    tensor = torch.from_numpy(array)
    if datatype == "BF16":
        tensor = tensor.view(torch.bfloat16)
    return tensor if device.type == "cpu" else tensor.to(device)


def _strings(name: str, array: Array) -> list[str]:
    if array.ndim > 1 and array.size != len(array):
        raise invalid(f"input '{name}' is of strings: torch takes them in one dimension, not in {array.ndim}")
    try:
        return [element.decode() for element in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise invalid(f"input '{name}' has a string that is not UTF-8: {error}") from error


def to_array(torch: Any, value: Any) -> Array:
    """An output as an array.

    Raises: TypeError where it is neither a tensor nor a list of strings.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.contiguous().view(torch.uint16)
        array: Array = tensor.cpu().contiguous().numpy()
        return array
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        strings = np.empty(len(value), object)
        strings[:] = [element.encode() for element in value]
        return strings
    raise TypeError(f"a model has to return tensors or lists of strings, not {type(value).__name__}")


def torch_dtype(torch: Any, datatype: str) -> Any:
    """The dtype of a V2 datatype; None for BYTES."""
    names = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16"}
    if datatype == "BYTES":
        return None
    return getattr(torch, names.get(datatype, datatype.lower()))
