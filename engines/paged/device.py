"""The device of an engine, its dtype, its operations, and the one thread that uses it."""

from __future__ import annotations

import logging
import os
import queue
import re
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from engines.core.errors import invalid, unavailable
from engines.core.processes import available_cores
from engines.paged.ops.native.attention import NativeOps
from engines.paged.ops.reference import Ops

_log = logging.getLogger(__name__)

_DEVICES = ("auto", "mps", "cuda", "cpu")
_DTYPES = ("auto", "float32", "float16", "bfloat16")


def choose_device(name: str) -> torch.device:
    """The device of --device. A virtual Mac reports MPS without memory (actions/runner-images issue 9918), so a small
    allocation is tried.

    Raises: EngineError where it is unknown or not available.
    """
    if name not in _DEVICES:
        raise invalid(f"device: '{name}' is none of {', '.join(_DEVICES)}")
    has_mps, has_cuda = torch.backends.mps.is_available(), torch.cuda.is_available()
    failure = mps_failure() if has_mps and name in ("auto", "mps") else ""
    if name == "auto":
        if failure:
            _log.warning("MPS is there but cannot be used, the processor computes: %s", failure)
        name = "mps" if has_mps and not failure else "cuda" if has_cuda else "cpu"
    if (name == "mps" and not has_mps) or (name == "cuda" and not has_cuda):
        raise unavailable(f"device: this machine's torch {torch.__version__} has no {name}; 'auto' takes what there is")
    if name == "mps" and failure:
        raise unavailable(f"device: mps is there but cannot be used: {failure}; 'auto' takes what there is")
    return torch.device(name)


def mps_failure() -> str:
    """Why MPS cannot allocate and read a few bytes; "" where it can."""
    try:
        value = torch.ones(1, device="mps").item()
    except RuntimeError as error:  # "MPS backend out of memory (... other allocations: 0 bytes ...)"
        return str(error).partition("\n")[0]
    return "" if value == 1.0 else f"a one that was written is read as {value:g}"


def choose_dtype(name: str, stored: str, device: torch.device) -> str:
    """The dtype of --dtype: by default `stored`, the folder's own, unless the device is slow at it.

    Raises: EngineError where it is unknown.
    """
    if name not in _DTYPES:
        raise invalid(f"dtype: '{name}' is none of {', '.join(_DTYPES)}")
    if name != "auto":
        return name
    if stored == "float32" or device.type != "cpu":
        return stored
    # Without bfloat16 instructions a processor converts each number.
    is_fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if is_fast else "float32"


def use_threads(count: int | None) -> None:
    """Set torch's number of threads on the processor; None: the cores that this process may use."""
    torch.set_num_threads(available_cores() if count is None else count)


# An M1 has seven or eight.
_FEWEST_CORES = 8
FAST_MATH = "PYTORCH_MPS_FAST_MATH"
_NAMES = ("auto", "reference", "native", "metal")


def choose_ops(name: str, device: torch.device, dtype: torch.dtype, *, deterministic: bool = False) -> Ops:
    """The operations of --ops: `metal` on a Mac; `native` on another processor, where a compiler is available;
    `reference` otherwise. On a Mac each kernel is checked first; torch computes those that fail, with a warning.

    Raises: EngineError.
    """
    if name not in _NAMES:
        raise invalid(f"ops: '{name}' is none of {', '.join(_NAMES)}")
    # Attention and sampling rely on -inf and NaN, which fast math drops. torch reads the variable once a process, when
    # it first compiles a Metal source (MetalShaderLibrary::compileLibrary): any value but "0" enables it.
    if device.type == "mps" and os.environ.pop(FAST_MATH, "0") != "0":
        _log.warning("%s is ignored: the kernels count on infinities and NaN", FAST_MATH)
    if name == "auto":
        if device.type == "cpu":
            return NativeOps()
        name = "metal" if device.type == "mps" else "reference"
    if name == "native":
        if device.type != "cpu":
            raise invalid("ops: 'native' computes on the processor: it needs device 'cpu'")
        return NativeOps(is_required=True)
    if name == "reference":
        return Ops(device)
    if name == "metal" and device.type != "mps":
        raise unavailable("ops: 'metal' needs an Apple GPU; 'auto' takes what there is")
    from engines.paged.ops.metal import MetalOps
    from engines.paged.ops.metal.self_check import checked, verdict_file

    ops = MetalOps(torch.mps.compile_shader, device, _gpu_cores(), is_deterministic=deterministic)
    return checked(ops, (dtype,), verdict=verdict_file(ops, (dtype,)))


def _gpu_cores() -> int:
    """Of this Mac's GPU, where the system reports it."""
    command = ["ioreg", "-rc", "AGXAccelerator", "-d", "1"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return _FEWEST_CORES
    match = re.search(r'"gpu-core-count"\s*=\s*(\d+)', output)
    return int(match[1]) if match else _FEWEST_CORES


Result = TypeVar("Result")


class DeviceThread:
    """Runs tasks one after another. It ends with the process, or by `end`."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def begin(self, task: Callable[[], Result]) -> Future[Result]:
        """Queue a task."""
        future: Future[Result] = Future()
        self._tasks.put((future, task))
        return future

    def end(self) -> None:
        """Wait for all queued tasks, and end. On the thread itself: end without waiting."""
        self._tasks.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            future, task = item
            try:
                future.set_result(task())
            except BaseException as error:  # the future's reader raises it
                future.set_exception(error)
            del item, future, task
