"""Every command of the engines prints its help."""

from __future__ import annotations

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from engines.cli.app import app

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_help(command: str) -> None:
    """A help text may contain brackets that rich would read as invalid markup, such as [/db]."""
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0, done.exception
    assert "Usage" in done.output
