"""Every command of the engines prints its help."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from engines.cli.app import app
from engines.cli.host import host
from engines.cli.llm import serve as llm

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_help(command: str) -> None:
    """A help text may contain brackets that rich would read as invalid markup, such as [/db]."""
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0, done.exception
    assert "Usage" in done.output


@pytest.mark.parametrize(
    ("command", "function", "panels"),
    [
        ("host", host, ("Model repository", "REST", "gRPC", "Scheduling and backends")),
        ("llm", llm, ("Server", "Engine", "Memory", "Stored blocks", "Answers")),
    ],
)
def test_the_help_of_a_server_names_each_option_in_full(
    command: str, function: Callable[..., object], panels: tuple[str, ...]
) -> None:
    """At 80 columns no option, value or title of `host --help` and `llm --help` is cut, and no line is longer."""
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    shown = subprocess.run(
        [sys.executable, "-m", "engines", command, "--help"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=True,
    ).stdout
    spelled = {"listen_on": "host", "settings_file": "settings"} | ({"name": "id"} if command == "host" else {})
    names = [name for name in inspect.signature(function).parameters if name != "context"]
    options = [f"--{spelled.get(name, name).replace('_', '-')}" for name in names]
    assert [option for option in options if not re.search(rf"^  {option}\b", shown, re.MULTILINE)] == []
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert all(f"\n{panel}:\n" in shown for panel in panels)
