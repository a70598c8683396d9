"""Which device an instance runs on, and which thread talks to it.

Two threads that use Metal crash torch (pytorch#197805), however they take turns: all instances of a process on such a
device hand their work to one thread. CUDA and the CPU are used from the instance's own thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from engines.core.errors import invalid

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
OnDevice = Callable[[Callable[[], Any]], Any]

_SINGLE_THREADED = {"mps"}
# What lacks some of torch's operations: a model that fails there may run on the CPU.
INCOMPLETE = {"mps"}
_LACKS = {"mps": {"FP64"}}
_threads: dict[str, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def is_named(wanted: str) -> bool:
    """Whether the parameter DEVICE names a device."""
    return bool(wanted) and wanted.lower() != "auto"


def choose(torch: Any, kind: str, device_id: int, wanted: str = "", datatypes: Iterable[str] = ()) -> Any:
    """The device of an instance: the one that is asked for by name, else by its kind. KIND_GPU is CUDA or Metal, and
    the CPU where there is neither or it lacks one of the model's `datatypes`, which is logged; KIND_MODEL is the CPU
    until the model says otherwise.

    Raises: EngineError where `wanted` is no device of this machine, or lacks a datatype.
    """
    device = _choose(torch, kind, device_id, wanted)
    missing = sorted(_LACKS.get(device.type, set()) & set(datatypes))
    if not missing:
        return device
    if is_named(wanted):
        raise invalid(f"parameter 'DEVICE' is '{wanted}', which has no {missing[0]}: the model's tensors are of it")
    _log.warning("an instance of KIND_GPU runs on the CPU: %s has no %s", device, missing[0])
    return torch.device("cpu")


def _choose(torch: Any, kind: str, device_id: int, wanted: str) -> Any:
    if is_named(wanted):
        try:
            device = torch.device(wanted.lower())
            torch.empty(0, device=device)
        except Exception as error:  # torch raises RuntimeError, AssertionError, or an error of the accelerator
            reason = str(error).split("\n")[0]
            raise invalid(f"parameter 'DEVICE' is '{wanted}', which cannot be used here: {reason}") from error
        return device
    if kind == "KIND_GPU":
        if torch.cuda.is_available():
            return torch.device("cuda", device_id)
        if torch.backends.mps.is_available():
            return torch.device("mps")
        _log.warning("an instance of KIND_GPU runs on the CPU: torch finds neither CUDA nor Metal here")
    return torch.device("cpu")


def caller(device_type: str) -> OnDevice:
    """What runs a function on the thread that may use the device, and returns or raises what it does."""
    if device_type not in _SINGLE_THREADED:
        return _here
    with _lock:
        if device_type not in _threads:
            _threads[device_type] = ThreadPoolExecutor(1, thread_name_prefix=f"torch-{device_type}")
        thread = _threads[device_type]
    return lambda work: thread.submit(work).result()


def _here(work: Callable[[], _T]) -> _T:
    return work()
