"""The check at startup: Metal's operations against the reference, and who takes over from one that fails."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from engines.paged.ops import sim
from engines.paged.ops.contract import Dense, Ops
from engines.paged.ops.metal import MetalOps, replay, self_check
from engines.paged.ops.metal.check_cases import GROUPS, cases
from engines.paged.ops.metal.self_check import checked, find_failures
from tests.engines.paged.metal.conftest import MakeOps

F16 = torch.float16


@pytest.fixture(autouse=True)
def _fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "ORDERING_ROUNDS", 20)


def broken_ops(old: str, new: str) -> MetalOps:
    """MetalOps in whose sources `old` stands as `new`."""

    def compile_shader(source: str) -> Any:
        return sim.compile_shader(source.replace(old, new))

    return MetalOps(compile_shader, "cpu")


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_all_operations_agree(metal_ops: MakeOps, dtype: torch.dtype) -> None:
    """Every operation of the contract computes what the reference does, with lanes in either order."""
    assert find_failures(metal_ops(), [dtype]) == {}


def test_check_covers_the_contract() -> None:
    """Every method of MetalOps that the contract names is in a group, and every group has a case."""
    contract = {name for group in GROUPS.values() for name in group}
    methods = {name for name in vars(Ops) if not name.startswith("_") and callable(getattr(Ops, name))}
    assert contract == methods - {
        "synchronize",
        "prepare_attention",
    }  # the first is torch's own, the second computes nothing
    assert {case.group for case in cases(F16)} == set(GROUPS)


# (what is broken, which operations that takes away, what is said)
BROKEN = [
    ("total / float(WIDTH)", "total / float(WIDTH + 30)", "add_rmsnorm", "two rows in float16: a result is off by"),
    ("sum = sum * before + now;", "sum = 0.0f;", "attention", "is not a number|is off by"),
    ("to[d + HALF] = T(b[i] * c + a[i] * s)", "to[d + HALF] = T(b[i] * c - a[i] * s)", "rope_write", "without norms"),
    (
        "kernel void copy_blocks(",
        "kernel void copy_block(",
        "copy_blocks",
        "RuntimeError: Failed to create function state",
    ),
    ("(layer + to) * CHUNKS", "(layer + from) * CHUNKS", "copy_blocks", "a result differs"),
    ("const ulong from = ulong(known_token", "const ulong from = nonsense(known_token", "embed", "SyntaxError: "),
    ("last_tokens[-1 - token]", "last_tokens[-token]", "embed", "a result is off by"),
    ("last_tokens[seats[row]] =", "last_tokens[row] =", "sample", "a result differs"),
]


@pytest.mark.parametrize("old, new, group, message", BROKEN)
def test_failing_operation_is_replaced(
    caplog: pytest.LogCaptureFixture, old: str, new: str, group: str, message: str
) -> None:
    """An operation that fails is computed by the reference and named in a warning; the others stay Metal's."""
    ops = broken_ops(old, new)
    with caplog.at_level(logging.WARNING):
        composed: Any = checked(ops, [F16])
    assert set(composed.replaced) == {group}
    (warning,) = caplog.messages
    assert warning.startswith(f"Metal's '{group}' is not used on this machine")
    assert re.search(message, warning)
    assert composed.name == "sim"

    x, weight = torch.ones(1, 64).half(), torch.ones(64).half()
    before = ops.num_dispatches
    normed, _ = composed.add_rmsnorm(x, None, weight, 1e-6)
    torch.testing.assert_close(normed, x, rtol=1e-2, atol=1e-2)
    product = composed.linear(x, composed.prepare_linear(Dense(torch.ones(8, 64).half())))
    assert product.tolist() == [[64.0] * 8]
    assert ops.num_dispatches == before + (1 if group == "add_rmsnorm" else 2)


def test_a_replay_that_is_wrong_is_not_used(metal_ops: MakeOps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where captured results would lie on each other, steps are computed each time."""
    real = replay._placed

    def on_each_other(result: Any, memory: torch.Tensor) -> torch.Tensor:
        result.offset = 0
        return real(result, memory)

    monkeypatch.setattr(replay, "_placed", on_each_other)
    composed: Any = checked(metal_ops(), [F16])
    assert set(composed.replaced) == {"replay"}
    assert composed.replay("step", None, lambda: 5) == 5


def test_disorder_replaces_all(caplog: pytest.LogCaptureFixture) -> None:
    """Where a dispatch does not see what the one before wrote, nothing of Metal is used."""
    ops = broken_ops("a[i] = b[(i + 1) % n]", "if (i != 5) a[i] = b[(i + 1) % n]")
    composed: Any = checked(ops, [F16])
    assert set(composed.replaced) == set(GROUPS)
    assert "dispatches do not run one after the other" in caplog.text


def test_good_operations_are_returned_themselves(metal_ops: MakeOps, caplog: pytest.LogCaptureFixture) -> None:
    """Where all is well nothing stands between the engine and its operations, and no warning is written."""
    ops = metal_ops()
    assert checked(ops, [F16]) is ops  # type: ignore[comparison-overlap]
    assert not caplog.messages


def test_one_thread_alone(metal_ops: MakeOps) -> None:
    """The first thread that runs a kernel is the only one; the check at startup lets go of it."""
    ops = metal_ops()
    x, weight = (torch.ones(size, device=ops.device) for size in ((1, 8), (8,)))
    ops.add_rmsnorm(x, None, weight, 1e-6)
    failures: list[BaseException] = []

    def use() -> None:
        try:
            ops.add_rmsnorm(x, None, weight, 1e-6)
        except AssertionError as error:
            failures.append(error)

    for expected in (1, 1):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert len(failures) == expected
        ops.kernels.release_thread()
    assert "run by one thread alone" in str(failures[0])


SANITIZED = """
import torch
torch.set_num_threads(1)
from engines.paged.ops import sim
from engines.paged.ops.metal import MetalOps
from engines.paged.ops.metal.check_cases import cases
ops = MetalOps(sim.compile_shader, "cpu")
for case in cases(torch.float16):
    if not case.name.startswith("8 bits"):
        case.compute(ops)
print(ops.num_dispatches)
"""


def sanitized(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **sim.sanitizer_environment(), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=110, check=False
    )


def test_sanitizers_find_nothing() -> None:
    """No kernel reads or writes out of its buffers, its threadgroup arrays or its registers (ASan and UBSan)."""
    done = sanitized(SANITIZED)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) > 50


OUT_OF_BOUNDS = """
import torch
from engines.paged.ops import sim
source = '''#include <metal_stdlib>
using namespace metal;
kernel void f(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i + 1] = 1.0f; }'''
sim.compile_shader(source).f(torch.zeros(8), threads=8)
"""


def test_sanitizers_find_what_is_out_of_bounds() -> None:
    """One number behind a buffer ends the process with a report of where."""
    done = sanitized(OUT_OF_BOUNDS)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
