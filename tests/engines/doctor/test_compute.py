"""Checks of devices: on this machine, and with fakes of a Mac's torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engines.doctor import budget, compute  # noqa: E402
from engines.doctor.finding import FindingStatus  # noqa: E402
from engines.paged.cache.claims import MemoryClaims  # noqa: E402
from engines.paged.ops.metal import self_check  # noqa: E402


@pytest.mark.parametrize(
    "platform, version, status",
    [
        ("darwin", "2.12.1", FindingStatus.FAIL),
        ("darwin", "2.13.0", FindingStatus.OK),
        ("darwin", "3.0.0", FindingStatus.OK),
        ("linux", "2.7.0+cpu", FindingStatus.OK),
    ],
)
def test_torch_versions(platform: str, version: str, status: FindingStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.13 a Mac's torch may copy freed memory to the GPU: that is a failure, and on Linux none."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(torch, "__version__", version)
    finding = compute.torch_version()
    assert finding.status is status
    assert status is FindingStatus.OK or finding.cure == 'pip install "torch>=2.13"'


def test_a_virtual_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS without memory is a failure that names the way out."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr("engines.paged.device.mps_failure", lambda: "MPS backend out of memory")
    finding = compute.gpu()
    assert finding.status is FindingStatus.FAIL
    assert "MPS backend out of memory" in finding.found
    assert "--device cpu" in finding.cure


def test_fast_mathematics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that changes what kernels compute is warned of."""
    assert compute.gpu().status is FindingStatus.OK
    monkeypatch.setenv("PYTORCH_MPS_FAST_MATH", "1")
    assert compute.gpu().status is FindingStatus.WARN


def test_without_an_apple_gpu() -> None:
    """Kernels and dispatches are skipped."""
    assert [compute.kernels().status, compute.dispatch().status] == [FindingStatus.SKIPPED] * 2


def test_replacements(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes what the reference does here; where it does not the check fails and names the group."""
    assert compute.replacements().status is FindingStatus.OK
    wrong = {"attention_decode": "a long context in float32: a result is off by 2"}
    monkeypatch.setattr(
        self_check, "disagreements", lambda ops, dtypes, groups: wrong if torch.float32 in dtypes else {}
    )
    finding = compute.replacements()
    assert finding.status is FindingStatus.FAIL
    assert "attention_decode: a long context in float32" in finding.found


def test_kernels_are_tried_in_every_datatype(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is wrong in float32 alone is found: models of float32 are served, too."""
    monkeypatch.setattr(
        self_check, "find_failures", lambda ops, dtypes: {"linear": "in float32"} if torch.float32 in dtypes else {}
    )
    monkeypatch.setattr("engines.paged.device.choose_device", lambda name: torch.device("mps"))
    monkeypatch.setattr(torch.mps, "compile_shader", None, raising=False)
    finding = compute.kernels()
    assert finding.status is FindingStatus.WARN
    assert "linear: in float32" in finding.found


def test_figures_of_this_machine() -> None:
    """Attention compiles and agrees; the memory has a bandwidth."""
    assert compute.native().status is FindingStatus.OK
    measured = compute.bandwidth()
    assert measured.status is FindingStatus.OK
    assert min(measured.figures["read"]) > 1e8


PUBLISHED = {
    "Llama 3.2 1B": 1.236e9,
    "Llama 3.2 3B": 3.213e9,
    "Qwen3 4B": 4.022e9,
    "Mistral 7B": 7.248e9,
    "Qwen2.5 7B": 7.616e9,
    "Llama 3.1 8B": 8.030e9,
    "Qwen3 8B": 8.191e9,
    "Qwen2.5 14B": 14.77e9,
    "Qwen3 30B-A3B": 30.53e9,
    "Qwen2.5 32B": 32.76e9,
    "Mixtral 8x7B": 46.70e9,
    "Llama 3.3 70B": 70.55e9,
}


def test_weights_of_popular_models() -> None:
    """The computed sizes agree with the model cards within 1 %."""
    computed = {model.name: model.num_weights for model in budget.PUBLISHED_MODELS}
    assert computed == pytest.approx(PUBLISHED, rel=0.01)


def test_what_fits() -> None:
    """A Mac of 16 GB: an 8B model fits in 4 bits, is tight in 8, and does not fit in 16; more bits never need less."""
    available, total = 8 << 30, 12 << 30
    model = next(model for model in budget.PUBLISHED_MODELS if model.name == "Llama 3.1 8B")
    needed = [model.needed_bytes(kind, "mps") for kind in ("int4", "int8", "fp16")]
    assert [budget.verdict(each, available, total) for each in needed] == [budget.FITS, budget.TIGHT, budget.NO]
    for each in budget.PUBLISHED_MODELS:
        sizes = [each.needed_bytes(kind, "mps") for kind in ("int4", "int8", "fp16")]
        assert sizes == sorted(sizes)


def test_the_budget_of_this_machine() -> None:
    """The table has a verdict for each model and size."""
    figures = budget.budget().figures
    assert len(figures["models"]) == len(budget.PUBLISHED_MODELS)
    assert {verdict for kinds in figures["models"].values() for verdict in kinds.values()} <= {"fits", "tight", "no"}


def test_the_budget_counts_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that an engine has claimed is not free for another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    total = budget.budget().figures["total"]
    claims = MemoryClaims()
    with claims.planning():
        claim = claims.claim(total)
    finding = budget.budget()
    assert finding.figures["available"] == 0
    assert "that engines here have claimed" in finding.found
    claim.release()
    assert budget.budget().figures["available"] > 0


@pytest.mark.parametrize("wrong, status", [(False, FindingStatus.OK), (True, FindingStatus.FAIL)])
def test_a_round_trip_by_coreml(wrong: bool, status: FindingStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is really converted; numpy replaces CoreML, which only a Mac has, once with right and once with wrong
    results."""
    ct = pytest.importorskip("coremltools")
    sent = []

    def predict(model: object, inputs: dict[str, object]) -> dict[str, object]:
        ((name, value),) = inputs.items()
        sent.append(name)
        return {"sum": value + (2 if wrong else 1)}

    monkeypatch.setattr(ct.models.MLModel, "predict", predict)
    finding = compute.coreml()
    assert finding.status is status
    assert sent == ["x"] * 4
