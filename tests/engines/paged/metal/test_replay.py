"""What a capture records of a computation, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engines.paged.ops.metal.replay import Capture, CapturedSteps
from tests.engines.paged.metal.conftest import MakeOps

CPU = torch.device("cpu")
# Operations of a step on an input, and whether each one is a view of it.
LOOKS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "a row": (lambda x: x[1], True),
    "another shape": (lambda x: x.view(-1), True),
    "contiguous already": (lambda x: x.contiguous(), True),
    "the same type": (lambda x: x.to(torch.float32), True),
    "a copy": (lambda x: x.clone(), False),
    "another type": (lambda x: x.to(torch.float64), False),
    "made contiguous": (lambda x: x.T.contiguous(), False),
    "made contiguous by its shape": (lambda x: x.T.reshape(-1), False),
    "a sum": (lambda x: x + 1, False),
    "written in place": (lambda x: x.add_(1), False),
}


@torch.inference_mode()
@pytest.mark.parametrize("look, is_replayed", LOOKS.values(), ids=LOOKS)
def test_what_is_copied_of_an_input_is_not_replayed(look: Callable[[Tensor], Tensor], is_replayed: bool) -> None:
    """A replay reads inputs at their address. A step that copies an input, or computes with it in torch, is not
    replayed, since the copy would keep the old values."""
    source = torch.arange(6, dtype=torch.float32).view(2, 3)
    steps = CapturedSteps(CPU)
    with Capture() as capture:
        given = look(source)
        out = torch.empty(given.shape)
        capture.add("copy", lambda to, values: to.copy_(values), (out, given))
    steps.keep("step", capture, out)
    _, step = steps.find("step")
    assert (step is not None) == is_replayed
    if step is not None:
        source.mul_(10)
        assert torch.equal(step.run(), look(source))


@torch.inference_mode()
def test_memory_is_one_piece(metal_ops: MakeOps) -> None:
    """A larger step allocates a larger memory, and steps captured in the smaller one are captured again: no step keeps
    an outgrown memory."""
    ops = metal_ops()
    norm = torch.ones(64, device=ops.device)

    steps = CapturedSteps(ops.device)
    for rows in (1, 2, 64):
        x = torch.ones(rows, 64, device=ops.device)
        with Capture() as ops.kernels.capture:
            returned, _ = ops.add_rmsnorm(x, None, norm, 1e-6)
        assert ops.kernels.capture is not None
        steps.keep(rows, ops.kernels.capture, returned)
        ops.kernels.capture = None
    assert steps.find(1) == (False, None) and steps.find(2) == (False, None)
    assert len(steps) == 1 and steps._memory is not None and steps._memory.numel() == 64 * 64 * 4


@torch.inference_mode()
def test_a_capture_keeps_no_results() -> None:
    """Results of a captured step are freed: memory does not grow with the number of layers."""
    with Capture() as capture:
        for _ in range(50):
            out = torch.empty(100)
            capture.add("write", lambda to: to.fill_(1.0), (out,))
    assert sum(each() is not None for each, _ in capture._results.values()) == 1
    steps = CapturedSteps(CPU)
    steps.keep("step", capture, out)
    assert steps._memory is not None and steps._memory.numel() == 512  # results of 400 bytes each share it
    _, step = steps.find("step")
    assert step is not None and step.run().tolist() == [1.0] * 100
