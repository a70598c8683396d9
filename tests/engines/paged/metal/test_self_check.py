"""The self-check at startup compares Metal's operations with the reference and replaces those that fail."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.core.errors import EngineError
from engines.paged.ops.interface import Dense
from engines.paged.ops.metal import MetalOps, replay, self_check
from engines.paged.ops.metal.check_cases import GROUPS, cases
from engines.paged.ops.metal.self_check import (
    FAILURES_LAST_SECONDS,
    ComposedOps,
    VerdictFile,
    checked,
    find_failures,
    verdict_file,
)
from engines.paged.ops.reference import Ops
from tests.engines.paged.metal.conftest import MakeOps
from tests.engines.paged.metal.steps import assert_close, make_step, plain_attention
from tests.engines.paged.support import sim

F16 = torch.float16


@pytest.fixture(autouse=True)
def _fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "ORDERING_ROUNDS", 20)


def broken_ops(old: str, new: str) -> MetalOps:
    """MetalOps whose sources have `old` replaced by `new`."""

    def compile_shader(source: str) -> Any:
        return sim.compile_shader(source.replace(old, new))

    return MetalOps(compile_shader, "cpu")


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_all_operations_agree(metal_ops: MakeOps, dtype: torch.dtype) -> None:
    """Every operation of the contract computes the reference's result, with lanes in either order."""
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


# (what is broken, the operations replaced for it, the message)
BROKEN = [
    ("total / float(WIDTH)", "total / float(WIDTH + 30)", "add_rmsnorm", "two rows in float16: a result is off by"),
    ("*reinterpret_cast<device const T2*>(q", "nonsense(q", "attention_prefill", "a prompt in float16: SyntaxError"),
    ("sum += sums[i] * weight_of(maxima[i], most);", "sum += 1.0f;", "attention_decode", "new tokens in float16: "),
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
    """A failing operation is replaced by the reference and named in a warning; the others still use Metal."""
    ops = broken_ops(old, new)
    with caplog.at_level(logging.WARNING):
        composed: Any = checked(ops, [F16])
    assert set(composed.replaced) == {group}
    (warning,) = caplog.messages
    assert warning.startswith(f"Metal's '{group}' is not used on this machine")
    assert re.search(message, warning)
    assert composed.name == "metal"

    x, weight = torch.ones(1, 64).half(), torch.ones(64).half()
    before = ops.kernels.dispatches.total()
    normed, _ = composed.add_rmsnorm(x, None, weight, 1e-6)
    torch.testing.assert_close(normed, x, rtol=1e-2, atol=1e-2)
    product = composed.linear(x, composed.prepare_linear(Dense(torch.ones(8, 64).half())))
    assert product.tolist() == [[64.0] * 8]
    assert ops.kernels.dispatches.total() == before + (1 if group == "add_rmsnorm" else 2)


def test_a_replay_that_is_wrong_is_not_used(metal_ops: MakeOps, monkeypatch: pytest.MonkeyPatch) -> None:
    """If captured results would overlap, replay is replaced: steps are computed each time."""
    monkeypatch.setattr(replay._Result, "end", 0)
    composed: Any = checked(metal_ops(), [F16])
    assert set(composed.replaced) == {"replay"}
    assert composed.replay("step", None, lambda: 5) == 5


# (sequences as (rows, context), is_reproducible, Metal's kernels with the prefill kernel replaced, with the decode
# kernel replaced)
ROUTES = [
    ([(1, 20), (8, 9)], False, {"paged_decode"}, set()),
    ([(1, 20), (9, 9)], False, set(), set()),
    ([(9, 9), (33, 40)], False, set(), {"paged_prefill"}),
    ([(1, 20)], True, set(), set()),
]


@pytest.mark.parametrize("sequences, is_reproducible, without_prefill, without_decode", ROUTES)
def test_attention_kernels_are_replaced_apart(
    sequences: list[tuple[int, int]], is_reproducible: bool, without_prefill: set[str], without_decode: set[str]
) -> None:
    """A step uses torch only if it needs the kernel that failed; results are right either way."""
    step = make_step(sequences, dtype=F16)
    step.batch.is_reproducible = is_reproducible
    for failed, expected in (("attention_prefill", without_prefill), ("attention_decode", without_decode)):
        metal = MetalOps(sim.compile_shader, "cpu")
        composed = ComposedOps(metal, Ops("cpu"), {failed: "for this test"})
        assert_close(composed.attention(step.q, step.cache, step.batch, step.scale, 0), plain_attention(step))
        assert set(metal.kernels.dispatches) == expected


def test_deterministic_attention_is_replaced_whole() -> None:
    """In deterministic mode a failure of either attention kernel replaces both, so that a row's arithmetic does not
    depend on its step."""
    metal = MetalOps(sim.compile_shader, "cpu", is_deterministic=True)
    composed = ComposedOps(metal, Ops("cpu"), {"attention_decode": "for this test"})
    step = make_step([(9, 9)], dtype=F16)
    composed.attention(step.q, step.cache, step.batch, step.scale, 0)
    assert metal.kernels.dispatches.total() == 0


class WrongNorm(Ops):
    """A replacement that is wrong too, as torch's own operations on MPS have been."""

    def add_rmsnorm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().add_rmsnorm(x, residual, weight * 1.1, eps)


def test_wrong_replacement_is_refused(tmp_path: Path) -> None:
    """If torch's result is wrong as well as Metal's, the engine does not start, and no verdict is stored."""
    broken = broken_ops("total / float(WIDTH)", "total / float(WIDTH + 30)")
    verdict = VerdictFile(tmp_path / "verdict.json")
    message = (
        "GPU computes 'add_rmsnorm' wrong, by Metal's kernel .*two rows in float16.* and by torch .*use device 'cpu'"
    )
    with pytest.raises(EngineError, match=message):
        checked(broken, [F16], replacement=WrongNorm("cpu"), verdict=verdict)
    assert not verdict.path.exists()


def test_replacement_is_checked_where_it_is_used_alone() -> None:
    """An operation that is right in Metal uses Metal, even if torch's is wrong."""
    ops = MetalOps(sim.compile_shader, "cpu")
    assert checked(ops, [F16], replacement=WrongNorm("cpu")) is ops  # type: ignore[comparison-overlap]


def test_verdict_is_kept(tmp_path: Path) -> None:
    """A second start uses the stored verdict, good or bad, and runs no kernel."""
    good, broken = VerdictFile(tmp_path / "good.json"), VerdictFile(tmp_path / "broken.json")
    checked(MetalOps(sim.compile_shader, "cpu"), [F16], verdict=good)
    checked(broken_ops("total / float(WIDTH)", "total / float(WIDTH + 30)"), [F16], verdict=broken)
    again = MetalOps(sim.compile_shader, "cpu")
    assert checked(again, [F16], verdict=good) is again  # type: ignore[comparison-overlap]
    composed: Any = checked(again, [F16], verdict=broken)
    assert set(composed.replaced) == {"add_rmsnorm"} and "is off by" in composed.replaced["add_rmsnorm"]
    assert again.kernels.dispatches.total() == 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"] * 2  # no partially written file is left


def test_failures_are_checked_again_after_a_day(tmp_path: Path) -> None:
    """A stored failure expires after a day, since its cause may be temporary; a good verdict holds as long as nothing
    changes."""
    verdict = VerdictFile(tmp_path / "verdict.json")
    yesterday = time.time() - FAILURES_LAST_SECONDS - 1
    for failed, expected in (({"embed": "no memory"}, None), ({}, {})):
        verdict.write(failed)
        assert verdict.read() == failed
        os.utime(verdict.path, (yesterday, yesterday))
        assert verdict.read() == expected


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"failed": []}', '{"failed": {"embed": 3}}', '{"failed": {"x": ""}}']
)
def test_corrupt_verdict_is_none(tmp_path: Path, text: str) -> None:
    """A file with other content is no verdict: the kernels are checked again."""
    (tmp_path / "verdict.json").write_text(text)
    assert VerdictFile(tmp_path / "verdict.json").read() is None


def test_verdict_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """If the cache folder cannot be created, the next start repeats the check, and this one succeeds."""
    (tmp_path / "file").write_text("")
    verdict = VerdictFile(tmp_path / "file" / "verdict.json")
    verdict.write({})
    assert verdict.read() is None


def test_verdict_belongs_to_its_machine_sources_and_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another torch version, system, GPU, kernel source, dtype or option has its own verdict."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ops = MetalOps(sim.compile_shader, "cpu")
    paths = [verdict_file(ops, [F16]).path]
    assert paths[0] == verdict_file(ops, [F16]).path and paths[0].is_relative_to(tmp_path)
    paths.append(verdict_file(ops, [torch.bfloat16]).path)
    paths.append(verdict_file(MetalOps(sim.compile_shader, "cpu", is_deterministic=True), [F16]).path)
    for target, name, value in (
        (torch, "__version__", "9.9"),
        (self_check.platform, "version", lambda: "Darwin Kernel Version 99"),
        (self_check, "gpu_name", lambda: "Apple M9"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(target, name, value)
            paths.append(verdict_file(ops, [F16]).path)
    (tmp_path / "other.metal").write_text("// another kernel")
    monkeypatch.setattr(self_check, "_SOURCES", ((tmp_path, "*.metal"),))
    paths.append(verdict_file(ops, [F16]).path)
    assert len(set(paths)) == 7


def test_disorder_replaces_all(caplog: pytest.LogCaptureFixture) -> None:
    """If a dispatch does not see the writes of the previous one, every operation is replaced."""
    ops = broken_ops("a[i] = b[(i + 1) % n]", "if (i != 5) a[i] = b[(i + 1) % n]")
    composed: Any = checked(ops, [F16])
    assert set(composed.replaced) == set(GROUPS)
    assert "dispatches do not run one after the other" in caplog.text


def test_good_operations_are_returned_themselves(metal_ops: MakeOps, caplog: pytest.LogCaptureFixture) -> None:
    """If all operations pass, the check returns them unwrapped and logs no warning."""
    ops = metal_ops()
    assert checked(ops, [F16]) is ops  # type: ignore[comparison-overlap]
    assert not caplog.messages


def test_one_thread_alone(metal_ops: MakeOps) -> None:
    """Only the first thread that runs a kernel may run kernels; the check at startup releases it."""
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
from tests.engines.paged.support import sim
from engines.paged.ops.metal import MetalOps
from engines.paged.ops.metal.check_cases import cases
ops = MetalOps(sim.compile_shader, "cpu")
for case in cases(torch.float16):
    if not case.name.startswith("8 bits"):
        case.compute(ops)
print(ops.kernels.dispatches.total())
"""


def sanitized(program: str) -> subprocess.CompletedProcess[str]:
    if sys.platform != "linux":
        pytest.skip("the sanitizers' runtime is preloaded as Linux does")
    environment = {**os.environ, **sim.sanitizer_environment(), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_sanitizers_find_nothing() -> None:
    """No kernel accesses memory outside its buffers, threadgroup arrays or registers (ASan and UBSan)."""
    done = sanitized(SANITIZED)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) > 50


OUT_OF_BOUNDS = """
import torch
from tests.engines.paged.support import sim
source = '''#include <metal_stdlib>
using namespace metal;
kernel void f(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i + 1] = 1.0f; }'''
sim.compile_shader(source).f(torch.zeros(8), threads=8)
"""


def test_sanitizers_find_what_is_out_of_bounds() -> None:
    """A read one number past a buffer ends the process with a report of its location."""
    done = sanitized(OUT_OF_BOUNDS)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
