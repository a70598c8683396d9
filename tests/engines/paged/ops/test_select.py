"""The choice of operations, and the settings made before."""

from __future__ import annotations

import os

import pytest
import torch

from engines.paged.device import FAST_MATH, choose_ops
from engines.paged.ops.reference import Ops
from engines.paged.ops.reference.attention import plain_attention


@pytest.mark.parametrize("value, warnings", [("1", 1), ("", 1), ("0", 0), (None, 0)])
def test_fast_math_is_off_on_mps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str | None, warnings: int
) -> None:
    """PYTORCH_MPS_FAST_MATH is unset before torch compiles its first kernel; a warning is logged if it was set."""
    if value is None:
        monkeypatch.delenv(FAST_MATH, raising=False)
    else:
        monkeypatch.setenv(FAST_MATH, value)
    choose_ops("reference", torch.device("mps"), torch.float16)
    assert FAST_MATH not in os.environ
    assert len(caplog.messages) == warnings


def test_other_devices_leave_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other devices the variable, which affects MPS only, is unchanged."""
    monkeypatch.setenv(FAST_MATH, "1")
    choose_ops("reference", torch.device("cpu"), torch.float32)
    assert os.environ[FAST_MATH] == "1"


def test_reference_attends_plainly_on_mps() -> None:
    """On MPS torch's own attention is not used, since it has been silently wrong there."""
    assert Ops("mps")._attention._dot_product is plain_attention
    assert Ops("cpu")._attention._dot_product is torch.nn.functional.scaled_dot_product_attention
