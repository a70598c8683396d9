"""Where the kernels run: on the simulation, and on a Mac's GPU where `-m metal` asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engines.paged.ops import sim
from engines.paged.ops.metal import MetalOps, ModelShape

MakeOps = Callable[..., MetalOps]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def shape_of(**changes: Any) -> ModelShape:
    """A small model's shape: 4 query heads on 2, of 64."""
    fields: dict[str, Any] = {
        "dtype": torch.float16, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 2, "head_size": 64, "rotary_size": 64,
        "block_size": 16,
    }  # fmt: skip
    return ModelShape(**{**fields, **changes})


@pytest.fixture(
    params=[
        "sim",
        pytest.param(
            "mps",
            marks=[
                pytest.mark.metal,
                pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs an Apple GPU"),
            ],
        ),
    ]
)
def metal_ops(request: pytest.FixtureRequest) -> MakeOps:
    """Makes MetalOps for a shape: metal_ops(head_size=128)."""

    def make(**changes: Any) -> MetalOps:
        if request.param == "sim":
            return MetalOps(sim.compile_shader, "cpu", shape_of(**changes))
        return MetalOps(torch.mps.compile_shader, "mps", shape_of(**changes))

    return make
