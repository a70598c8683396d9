"""engines/MACOS.md: its files are right, and its commands and options exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from engines.fleet.config import load_fleet
from gateway.config.rules import load_rules
from gateway.dry_run import rule_tests

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "engines" / "MACOS.md").read_text()
FILES = dict(re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", PAGE, re.DOTALL))
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
COMMANDS = [
    line.partition(" #")[0].strip().removesuffix("&").strip().removeprefix("sudo ").removeprefix(".venv/bin/")
    for line in SHELL.split("\n")
    if re.match(r"(sudo )?(\.venv/bin/)?pointsman ", line)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's files and the models that they name."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for model in ("chat", "vision"):
        (tmp_path / "models" / model).mkdir(parents=True)
    return tmp_path


def test_the_fleet_is_right(folder: Path) -> None:
    """The fleet file has no problems and both agents."""
    loaded = load_fleet(folder / "fleet.yaml")
    assert loaded.problems == ()
    assert loaded.fleet is not None
    assert [agent.name for agent in loaded.fleet.agents] == ["chat", "vision"]


def test_the_rules_are_right(folder: Path) -> None:
    """The rules load without a warning, and an environment variable sets the CUDA machine's address."""
    loaded = rule_tests.tested(load_rules([folder / "rules"], {"CUDA_URL": "http://10.0.0.7:8000"}))
    assert loaded.problems == ()
    assert loaded.rules is not None
    assert [endpoint.url for endpoint in loaded.rules.engines["cuda"].endpoints] == ["http://10.0.0.7:8000"]


def test_there_are_commands() -> None:
    """The tests below cover the page's files and commands."""
    assert len(FILES) == 3
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_exist(command: str) -> None:
    """Each command is there, and its help names each option that the page gives it."""
    words = shlex.split(command)[1:]
    own = words[: words.index("--")] if "--" in words else words
    name = own[:2] if own[0] in ("service", "keys") else own[:1]
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *name, "--help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "TERM": "dumb", "HOME": "/tmp"},
    )
    options = [word.partition("=")[0] for word in own if word.startswith("--")]
    assert [option for option in options if option not in done.stdout] == []


def test_the_services_arguments_are_right(folder: Path) -> None:
    """The commands accept the arguments of the page's services."""
    for command in (each for each in COMMANDS if " -- " in each):
        words = [sys.executable, "-m", "gateway", *shlex.split(command)[1:]]
        words.insert(words.index("install") + 1, "--dry-run")
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=_environment())
        assert done.returncode == 0, done.stderr
        assert "pointsman" in done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}
