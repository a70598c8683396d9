"""The kernels run in the simulation, and with `-m metal` on a Mac's GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engines.paged.ops.metal import MetalOps
from tests.engines.paged.support import sim

MakeOps = Callable[..., MetalOps]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


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
    """Makes MetalOps with options: metal_ops(is_deterministic=True)."""

    def make(**options: Any) -> MetalOps:
        if request.param == "sim":
            return MetalOps(sim.compile_shader, "cpu", **options)
        return MetalOps(torch.mps.compile_shader, "mps", **options)

    return make


@pytest.fixture(params=["forward", "reversed"])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which the simulation runs lanes, simdgroups and groups."""
    monkeypatch.setenv("POINTSMAN_SIM_LANES", request.param)
