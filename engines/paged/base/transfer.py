"""Asynchronous copies between the host and the device.

Metal reads the source of a copy when its stream gets there, long after the call has returned, and until torch 2.13 that
memory could be freed before (pytorch#139550, #189690, #181017). So every source is torch's own memory, and is kept
until the device is known to have read it. numpy's memory is never used: torch would free it on Metal's completion
thread, which would wait for Python's lock there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Staging:
    """Copies to one device, on the thread that uses the device."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._is_host = self.device.type == "cpu"
        self._sources: list[Tensor] = []

    def put(self, values: Sequence[Any], dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers, or equally long rows of numbers, as a tensor on the device."""
        return self.copy(torch.tensor(values, dtype=dtype))

    def put_tensor(self, tensor: Tensor) -> Tensor:
        """A host tensor on the device; its memory may be overwritten afterwards. On the CPU the tensor itself."""
        return tensor if self._is_host else self.copy(tensor.clone(memory_format=torch.contiguous_format))

    def copy(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        """A contiguous host tensor on the device: in new memory, or in `target`. Its memory is torch's, and is not
        written any more."""
        if target is not None:
            target.copy_(source, non_blocking=True)
        elif self._is_host:
            return source
        else:
            target = source.to(self.device, non_blocking=True)
        if not self._is_host:
            self._sources.append(source)
        return target

    def take_sources(self) -> list[Tensor]:
        """The sources of all copies so far. The caller keeps them until the device has reached work that it was given
        later."""
        sources, self._sources = self._sources, []
        return sources


_POLL_SECONDS = 20e-6  # a step takes milliseconds


class HostCopy:
    """Tensors on their way to the host. The copies are queued behind what computes them and before the next step, so
    that waiting for them is not waiting for that step."""

    def __init__(self, device: torch.device, *tensors: Tensor) -> None:
        """`tensors` of the device; without any, `values` waits for the device's earlier work."""
        self._event: Any = None
        if device.type == "cpu":
            self._tensors = tensors
            return
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        else:
            self._event = torch.mps.Event()
        self._tensors = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        self._event.record()

    def values(self) -> tuple[Tensor, ...]:
        """The tensors, once they are on the host."""
        if self._event is not None:
            # Polled, as waiting for Metal's events has hung in some releases (pytorch#196395).
            while not self._event.query():
                time.sleep(_POLL_SECONDS)
            self._event = None
        return self._tensors
