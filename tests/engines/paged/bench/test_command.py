"""`pointsman llm bench` on a tiny model."""

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from engines.cli.app import app as pointsman
from engines.cli.llm_bench import bench
from engines.paged.bench import machine
from tests.engines.paged.support.tiny_models import tiny_model

PNG = b"\x89PNG\r\n\x1a\n"

app = typer.Typer()
app.command()(bench)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BUFFER_BYTES", 1 << 22)


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_model("llama")


def run(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["--threads", "1", "--dtype", "float32", *map(str, arguments)])
    return found.exit_code, found.output


def test_it_prints_and_writes(folder: Path, tmp_path: Path) -> None:
    """The command writes a table with one row per batch size, a text plot, an image, and a JSON report with the
    machine, the plan and all samples."""
    report, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    status, output = run("--model", folder, "--batches", "1,4", "--tokens", 6, "--rounds", 2, "--prompt-tokens", 20,
                         "--report", report, "--plot", plot)  # fmt: skip
    assert status == 0, output
    for message in ("tokens/s", "bandwidth", "LlamaForCausalLM, float32", "memory bandwidth:", "p50"):
        assert message in output
    assert plot.read_bytes().startswith(PNG)
    results = json.loads(report.read_text())
    assert results["format"] == 1 and results["machine"]["torch"] == torch.__version__
    assert results["engine"]["shape"]["num_layers"] == 3
    assert results["engine"]["memory"]["cache_tokens"] >= 4 * 26
    assert len(results["bandwidth"]["read"]) == machine.ROUNDS
    assert [point["batch"] for point in results["points"]] == [1, 4]
    assert [measured["batch"] for measured in results["rounds"]] == [1, 4, 1, 4]
    for measured in results["rounds"]:
        assert [len(times) for times in measured["requests"]] == [6] * measured["batch"]
        assert all(times == sorted(times) and times[0] > 0 for times in measured["requests"])
    for point in results["points"]:
        assert 0 < point["first_token_p50"] <= point["first_token_p95"]
        assert 0 < point["bandwidth_share"] == pytest.approx(point["bandwidth"] / results["bandwidth"]["best"])


def test_packed_weights_read_less(folder: Path, tmp_path: Path) -> None:
    """Packed weights reduce the bytes that a step reads."""
    bytes_of = {}
    for name in ("none", "int8"):
        report = tmp_path / f"{name}.json"
        status, output = run("--model", folder, "--batches", 1, "--quick", "--prompt-tokens", 4, "--quantize", name,
                             "--report", report)  # fmt: skip
        assert status == 0, output
        bytes_of[name] = json.loads(report.read_text())["points"][0]["step_bytes"]
    assert bytes_of["int8"] < 0.4 * bytes_of["none"]


@pytest.mark.parametrize(
    "arguments, status, why",
    [
        (["--prompt-tokens", 5000], 1, "5000 tokens of prompt and 64 of answer are more than the 2048"),
        (["--batches", "1,no"], 2, "numbers with commas between them"),
        (["--batches", "0"], 2, "each must be at least 1"),
        (["--report", "/no/such/folder/bench.json"], 1, "there is no folder /no/such/folder"),
        (["--device", "mps"], 1, "has no mps"),
    ],
)
@pytest.mark.skipif(torch.backends.mps.is_available(), reason="one of them is what a Mac has")
def test_invalid_measurements_are_refused(folder: Path, arguments: list[object], status: int, why: str) -> None:
    """An invalid option exits with an error that names the valid values."""
    found, output = run("--model", folder, *arguments)
    assert (found, why in " ".join(output.split())) == (status, True), output


def test_a_folder_must_be_a_model(tmp_path: Path) -> None:
    """A folder without a config.json is refused with an error that names it."""
    status, output = run("--model", tmp_path)
    assert status == 1 and "it has no config.json" in output


def test_the_bandwidth_is_measured_within_free_memory() -> None:
    """Both buffers fit in a quarter of the free memory, and the result keeps the samples of every round of both
    loops."""
    rounds: list[tuple[int, int]] = []
    found = machine.measure_bandwidth(torch.device("cpu"), 1 << 24, lambda *each: rounds.append(each))
    assert found.buffer_bytes == 1 << 21
    assert rounds == [(number + 1, machine.ROUNDS) for number in range(machine.ROUNDS)]
    assert len(found.read) == len(found.copy) == machine.ROUNDS
    assert found.best == max(*found.read, *found.copy) > 1e7


def test_it_is_a_command_of_pointsman_llm() -> None:
    """`pointsman llm` has `bench` as a subcommand."""
    found = CliRunner().invoke(pointsman, ["llm", "bench", "--help"])
    assert found.exit_code == 0 and "Measure a language model on this machine" in found.output
