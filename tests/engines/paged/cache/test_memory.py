"""An engine's memory plan: on a Mac with a fake torch.mps, beside other engines with real claims."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from engines.core.errors import EngineError
from engines.paged import device as device_module
from engines.paged.base.options import EngineOptions
from engines.paged.cache import claims
from engines.paged.cache.claims import MemoryClaims
from engines.paged.cache.memory import GIB, MIB, available_memory, plan_memory
from engines.paged.device import choose_device
from engines.paged.model.config import DecoderConfig, QuantizationSpec

MPS = torch.device("mps")
LLAMA_1B = DecoderConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    head_size=64,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    rotary_size=64,
    max_positions=131_072,
    windows=(0,) * 16,
    dtype="float16",
)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Mac with 16 GB: the limit that Metal recommends, the memory of this process, and the free memory of the
    machine."""
    it = SimpleNamespace(recommended=12 * GIB, own=0, available=14 * GIB)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: it.recommended)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: it.own)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB, available=it.available))
    monkeypatch.setattr(Path, "read_text", _without_cgroup(Path.read_text))
    return it


def _without_cgroup(read: object) -> object:
    def read_text(path: Path, *more: object, **named: object) -> str:
        if path.is_relative_to("/sys/fs/cgroup"):
            raise FileNotFoundError(path)
        return read(path, *more, **named)  # type: ignore[operator,no-any-return]

    return read_text


def test_other_programs_memory_is_not_taken(mac: SimpleNamespace) -> None:
    """If other programs leave 5 GiB of a Mac free, an engine plans for a share of that, whatever Metal recommends."""
    mac.available = 5 * GIB
    assert available_memory(MPS, 0) == int(0.8 * 5 * GIB)


def test_two_engines_do_not_plan_for_the_same_bytes(mac: SimpleNamespace) -> None:
    """An engine does not plan for memory that another engine has claimed, even if that engine has not allocated it
    yet."""
    first = available_memory(MPS, 0)
    second = available_memory(MPS, 0, claimed_bytes=first)
    assert first == int(0.8 * 12 * GIB)
    assert first + second <= mac.recommended
    assert available_memory(MPS, 3 * GIB, claimed_bytes=20 * GIB) == 3 * GIB  # its weights are loaded already


def test_the_processor_shares_with_other_engines_too(mac: SimpleNamespace) -> None:
    """On a CPU an engine plans for half of the free memory, and for no more than other engines' claims leave."""
    assert available_memory(torch.device("cpu"), 0) == 7 * GIB
    assert available_memory(torch.device("cpu"), 0, claimed_bytes=10 * GIB) == 3 * GIB


def test_a_large_mac_is_not_filled() -> None:
    """Without --memory-gb the cache of a Mac is limited to two contexts, or 2048 tokens for each sequence. With
    --memory-gb, or on CUDA, it has no such limit."""
    options, available = EngineOptions(), 200 * GIB

    def tokens(options: EngineOptions, device_type: str, context: int = 131_072) -> int:
        return plan_memory(LLAMA_1B, options, 3 * GIB, available, context, device_type=device_type).cache_tokens

    assert tokens(options, "mps") == 2 * 131_072
    assert tokens(options, "mps", context=8192) == 64 * 2048
    assert tokens(options, "mps", context=1024) == 64 * 1024
    assert tokens(replace(options, memory_gb=100), "mps") > 2_000_000
    assert tokens(options, "cuda") > 5_000_000


@pytest.mark.parametrize("device_type, scratch", [("mps", 64 * MIB), ("cuda", 0), ("cpu", 0)])
def test_the_scratch_of_packed_matrices_is_planned(device_type: str, scratch: int) -> None:
    """A Mac's plan includes scratch memory for the largest unpacked matrix, gate and up together, and none for dense
    weights."""

    def workspace(config: DecoderConfig, options: EngineOptions) -> int:
        return plan_memory(config, options, GIB, 100 * GIB, 4096, device_type=device_type).workspace_bytes

    options = EngineOptions(max_sequences=32)
    dense = workspace(LLAMA_1B, options)
    assert workspace(LLAMA_1B, replace(options, quantize="int4")) - dense == scratch
    packed = replace(LLAMA_1B, quantization=QuantizationSpec(4, 64))
    assert workspace(packed, options) - dense == scratch
    huge = replace(packed, intermediate_size=100_000)
    assert workspace(huge, options) - workspace(replace(huge, quantization=None), options) == 2 * scratch
    exact = replace(options, deterministic=True)
    assert workspace(packed, exact) == workspace(LLAMA_1B, exact)  # its products need no unpacked copy


def test_captured_steps_are_planned() -> None:
    """A Mac's plan includes the results of captured decoding steps, for as many rows as are computed without torch.
    Other devices and deterministic mode capture no steps."""

    def replay(config: DecoderConfig, options: EngineOptions) -> int:
        plans = (plan_memory(config, options, GIB, 100 * GIB, 4096, device_type=each) for each in ("mps", "cpu"))
        on_mps, on_cpu = (plan.workspace_bytes for plan in plans)
        return on_mps - on_cpu

    options = EngineOptions(max_sequences=64)
    row = (6 * 2048 + 3 * 8192) * 2 + 128_256 * (2 + 4)
    assert 32 * row < replay(LLAMA_1B, options) == 32 * MIB < 64 * row
    packed = replace(LLAMA_1B, quantization=QuantizationSpec(4, 64))
    assert replay(packed, options) == 64 * MIB + 64 * MIB  # 64 rows, and the scratch of its matrices
    assert replay(LLAMA_1B, replace(options, deterministic=True)) == 0


CLAIMANT = """
import sys
from pathlib import Path
from engines.paged.cache.claims import MemoryClaims
claims = MemoryClaims(Path(sys.argv[1]))
with claims.planning():
    claim = claims.claim(int(sys.argv[2]))
print("claimed", flush=True)
sys.stdin.read()
"""


@contextmanager
def claimant(folder: Path, num_bytes: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has claimed this much memory."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIMANT, str(folder), str(num_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "claimed\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def claimed(folder: Path) -> int:
    with MemoryClaims(folder).planning() as total:
        return total


def test_claims_of_living_processes_count(tmp_path: Path) -> None:
    """Claims of two engines add up; the claim of a killed engine ends with its process, and the next reader deletes its
    file."""
    with claimant(tmp_path, 3 * GIB), claimant(tmp_path, 2 * GIB) as second:
        assert claimed(tmp_path) == 5 * GIB
        second.kill()
        second.wait()
        assert claimed(tmp_path) == 3 * GIB
        assert len(list(tmp_path.glob("*.claim"))) == 1
    assert claimed(tmp_path) == 0


def test_a_claim_ends_with_its_engine(tmp_path: Path) -> None:
    """Within a process a claim ends when it is released or garbage-collected."""
    claims = MemoryClaims(tmp_path)
    first, second = claims.claim(GIB), claims.claim(2 * GIB)
    assert claimed(tmp_path) == 3 * GIB
    first.release()
    assert claimed(tmp_path) == 2 * GIB
    del second
    gc.collect()
    assert claimed(tmp_path) == 0
    assert not list(tmp_path.glob("*.claim"))


def test_an_unusable_folder_stops_no_engine(tmp_path: Path) -> None:
    """If claims cannot be written, an engine starts without regard to other engines."""
    (tmp_path / "file").write_text("")
    claims = MemoryClaims(tmp_path / "file")
    with claims.planning() as others:
        assert others == 0
        claims.claim(GIB).release()


def test_a_plan_that_takes_too_long_stops_no_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the timeout an engine plans with the claims that it sees and logs a warning."""
    with MemoryClaims(tmp_path).planning():
        claim = MemoryClaims(tmp_path).claim(GIB)
        with MemoryClaims(tmp_path, timeout_seconds=0).planning() as others:
            assert others == GIB
    assert "no longer waits" in caplog.text
    caplog.clear()
    assert claimed(tmp_path) == GIB
    assert not caplog.text
    claim.release()


def test_claims_are_of_those_who_share_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims folder depends on the machine's boot ID and the container's cgroup, so that a cache on NFS or a shared
    volume keeps them apart."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = MemoryClaims().folder
    assert here == MemoryClaims().folder
    assert here.parent == tmp_path / "pointsman" / "memory"
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "boot_id").write_text("another-boot\n")
    monkeypatch.setattr(claims, "_CGROUP", tmp_path)
    elsewhere = MemoryClaims().folder
    monkeypatch.setattr(claims, "_BOOT_ID", tmp_path / "boot_id")
    later = MemoryClaims().folder
    assert later.name == f"another-boot-{tmp_path.stat().st_ino}"
    monkeypatch.setattr(claims, "_BOOT_ID", tmp_path / "missing")
    unknown = MemoryClaims().folder
    assert len({here, elsewhere, later, unknown}) == 4


def test_the_domain_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims folder of a Mac is named for the boot time from sysctl, without a cgroup."""

    def sysctl(command: list[str], **_: object) -> SimpleNamespace:
        assert command == ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return SimpleNamespace(stdout="6C2B8A10-0000-4444-8888-1234567890AB\n")

    monkeypatch.setattr(subprocess, "run", sysctl)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(claims, "_CGROUP", Path("/nowhere"))
    assert claims.memory_domain() == "6C2B8A10-0000-4444-8888-1234567890AB-0"


@pytest.fixture
def _virtual_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub's virtual Mac: MPS is available but has no memory."""

    def ones(*_: object, device: str) -> None:
        raise RuntimeError(
            f"{device.upper()} backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes, max allowed: "
            "7.93 GB). Tried to allocate 256 bytes on shared pool."
        )

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(device_module.torch, "ones", ones)


@pytest.mark.usefixtures("_virtual_mac")
def test_mps_that_has_no_memory_is_not_chosen(caplog: pytest.LogCaptureFixture) -> None:
    """`auto` chooses another device and logs the reason; `mps` fails with that reason."""
    assert choose_device("auto").type in ("cpu", "cuda")
    assert "MPS backend out of memory" in caplog.text
    with pytest.raises(EngineError, match="mps is there but cannot be used: MPS backend out of memory"):
        choose_device("mps")
    assert choose_device("cpu").type == "cpu"


def test_an_engine_claims_what_it_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live engine's plan counts as a claim, and a new engine does not plan for memory that others have claimed."""
    for module in ("tokenizers", "safetensors", "llguidance"):
        pytest.importorskip(module)
    from engines.paged import builder
    from engines.paged.engine import PagedEngine
    from engines.samples.repository import MODELS

    monkeypatch.setattr(builder, "MemoryClaims", lambda: MemoryClaims(tmp_path))
    folder, options = MODELS / "storyteller" / "1", EngineOptions(device="cpu", ops="reference", max_sequences=2)
    engine = PagedEngine.load(folder, options)
    assert claimed(tmp_path) == engine.memory.total_bytes
    engine.stop()
    del engine
    gc.collect()
    assert claimed(tmp_path) == 0
    with (
        claimant(tmp_path, psutil.virtual_memory().total),
        pytest.raises(EngineError, match="raise memory_gb"),
    ):
        PagedEngine.load(folder, options)
