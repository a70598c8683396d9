"""The device of a torch model, and its tensors: arrays to torch and back.

BF16 arrays are uint16; BYTES are lists of str, as in TorchScript.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from engines.backends.framework_values import decoded, name_of_datatype, strings
from engines.core.datatypes import Array
from engines.core.errors import invalid

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
OnDevice = Callable[[Callable[[], Any]], Any]

_SINGLE_THREADED = {"mps"}
# Devices that lack some of torch's operations: a model that fails there may run on the CPU.
INCOMPLETE = {"mps"}
_LACKS = {"mps": {"FP64"}}
_threads: dict[str, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def is_named(name: str) -> bool:
    """Whether the parameter DEVICE names a device."""
    return bool(name) and name.lower() != "auto"


def choose(torch: Any, kind: str, device_id: int, name: str = "", datatypes: Iterable[str] = ()) -> Any:
    """The device of an instance: the configured one (`name`), else by its kind. KIND_GPU is CUDA or Metal, or the CPU
    (logged) if there is neither or it lacks one of the model's `datatypes`; KIND_MODEL is the CPU until the model is
    loaded.

    Raises: EngineError if `name` is not a device of this machine, or lacks a datatype.
    """
    device = _choose(torch, kind, device_id, name)
    missing = sorted(_LACKS.get(device.type, set()) & set(datatypes))
    if not missing:
        return device
    if is_named(name):
        raise invalid(f"parameter 'DEVICE' is '{name}', which has no {missing[0]}: the model's tensors are of it")
    _log.warning("an instance of KIND_GPU runs on the CPU: %s has no %s", device, missing[0])
    return torch.device("cpu")


def _choose(torch: Any, kind: str, device_id: int, name: str) -> Any:
    if is_named(name):
        try:
            device = torch.device(name.lower())
            torch.empty(0, device=device)
        except Exception as error:  # torch raises RuntimeError, AssertionError, or an error of the accelerator
            reason = str(error).split("\n")[0]
            raise invalid(f"parameter 'DEVICE' is '{name}', which cannot be used here: {reason}") from error
        return device
    if kind == "KIND_GPU":
        if torch.cuda.is_available():
            return torch.device("cuda", device_id)
        if torch.backends.mps.is_available():
            return torch.device("mps")
        _log.warning("an instance of KIND_GPU runs on the CPU: torch finds neither CUDA nor Metal here")
    return torch.device("cpu")


def caller(device_type: str) -> OnDevice:
    """A function that runs another one on the thread that may use the device, and returns its result."""
    if device_type not in _SINGLE_THREADED:
        return _on_this_thread
    with _lock:
        if device_type not in _threads:
            _threads[device_type] = ThreadPoolExecutor(1, thread_name_prefix=f"torch-{device_type}")
        thread = _threads[device_type]
    return lambda work: thread.submit(work).result()


def _on_this_thread(work: Callable[[], _T]) -> _T:
    return work()


def to_torch(torch: Any, name: str, array: Array, datatype: str, device: Any) -> Any:
    """A tensor on the device; on the CPU a view of the array if that is writable.

    Raises: EngineError for strings that are not UTF-8, or of another shape than [n] (or [n, 1]).
    """
    if array.dtype == object:
        if array.ndim > 1 and array.size != len(array):
            raise invalid(f"input '{name}' is of strings: torch takes them in one dimension, not in {array.ndim}")
        return decoded(name, array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or not array.flags.c_contiguous:
        # Clients' memory must not change, whatever the model writes in place.
        array = array.copy()
    tensor = torch.from_numpy(array)
    if datatype == "BF16":
        tensor = tensor.view(torch.bfloat16)
    return tensor if device.type == "cpu" else tensor.to(device)


def to_array(torch: Any, value: Any) -> Array:
    """An output as an array. Raises: TypeError if it is neither a tensor nor a list of strings."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.contiguous().view(torch.uint16)
        array: Array = tensor.cpu().contiguous().numpy()
        return array
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        return strings([element.encode() for element in value], (len(value),))
    raise TypeError(f"a model has to return tensors or lists of strings, not {type(value).__name__}")


def torch_dtype(torch: Any, datatype: str) -> Any:
    """The dtype of a V2 datatype; None for BYTES."""
    return None if datatype == "BYTES" else getattr(torch, name_of_datatype(datatype))
