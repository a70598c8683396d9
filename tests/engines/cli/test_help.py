"""Every command of the engines prints its help."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from engines.cli.app import app
from engines.cli.host import host

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_help(command: str) -> None:
    """A help text may contain brackets that rich would read as invalid markup, such as [/db]."""
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0, done.exception
    assert "Usage" in done.output


def test_the_host_names_each_option_in_full() -> None:
    """At 80 columns no option, value or title of `host --help` is cut, and no line is longer."""
    command = [sys.executable, "-m", "engines", "host", "--help"]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True).stdout
    spelled = {"listen_on": "host", "name": "id"}
    options = [f"--{spelled.get(name, name).replace('_', '-')}" for name in inspect.signature(host).parameters]
    assert [option for option in options if not re.search(rf"^  {option}\b", shown, re.MULTILINE)] == []
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert all(f"\n{panel}:\n" in shown for panel in ("Model repository", "REST", "gRPC", "Scheduling and backends"))
