"""`pointsman doctor`, run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engines.doctor.finding import CHECKS
from tests.support.ports import free_port

REPOSITORY = Path(__file__).parents[3]


def doctor(*arguments: str, program: str = "gateway") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", program, "doctor", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=100)


def test_findings_as_json_and_as_a_file(tmp_path: Path) -> None:
    """--json prints them, --report writes them, and the exit status is 0 where nothing failed."""
    report = tmp_path / "report.md"
    done = doctor("--only=python", "--only=packages", "--json", f"--report={report}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == {"python", "packages"}
    assert "| python | ok |" in report.read_text()


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    """Each endpoint of the rules is a check; one that fails makes the exit status 1, and shows what to do."""
    rules, port = tmp_path / "rules.yaml", free_port()
    urls = f"[http://127.0.0.1:{port}, http://127.0.0.1:{free_port()}]"
    rules.write_text(
        f"version: 1\nengines:\n  triton: {{endpoints: {urls}}}\nroutes:\n- {{name: all, engine: triton}}\n"
    )
    done = doctor(f"--rules={rules}", "--only=engine triton 1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"cannot connect to 127.0.0.1:{port}" in " ".join(done.stdout.split())
    assert "-> nothing listens there" in " ".join(done.stdout.split())
    assert "1 fail" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--only=nothing"], "there is no check 'nothing'"),
        (["--rules=/nowhere.yaml"], "/nowhere.yaml"),
        (["--only=python", "--report=/nowhere/at/all.md"], "/nowhere/at/all.md"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    """Wrong options are reported by name, with exit status 2."""
    done = doctor(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stdout + done.stderr


def test_every_check_is_there() -> None:
    """Each check of the table has an existing function and a unique name."""
    import importlib

    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        module, _, name = check.function.partition(":")
        if all(importlib.util.find_spec(each) for each in check.needs):
            assert callable(getattr(importlib.import_module(module), name))
