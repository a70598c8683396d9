"""Values on their way from the device to the host, while the device goes on."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

_POLL_SECONDS = 20e-6  # a step takes milliseconds


class HostCopy:
    """Tensors that the host will read. The copies are in the device's queue behind what computes them, and before
    the next step: to wait for them is not to wait for that."""

    def __init__(self, device: torch.device, *tensors: Tensor) -> None:
        """`tensors` of the device; without any, `values` waits for what the device was given before."""
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
        """The tensors, once they are here."""
        if self._event is not None:
            # Asked again and again, as waiting in Metal's events has hung in some releases (pytorch#196395).
            while not self._event.query():
                time.sleep(_POLL_SECONDS)
            self._event = None
        return self._tensors
