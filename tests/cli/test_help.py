"""The help of all commands, in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from engines.cli.app import app as engines_app
from gateway.cli.app import make_app

APPS = {"pointsman": make_app(), "engines": engines_app}


def commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        # what an engine's program is asked is among the engines' commands
        if not child.hidden and not child.context_settings.get("ignore_unknown_options"):
            yield from commands((*path, name), child)


ALL = [each for name, app in APPS.items() for each in commands((name,), get_command(app))]


def test_all_commands_are_tried() -> None:
    assert len(ALL) > 60 and ("engines", "llm", "bench") in [path for path, _ in ALL]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_names_are_whole(path: tuple[str, ...], command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name of an option and of a command is in one piece, and each line fits."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    result = CliRunner().invoke(APPS[path[0]], [*path[1:], "--help"])
    assert result.exit_code == 0, result.output
    names = [name for each in command.params if not getattr(each, "hidden", False) for name in _names(each)]
    names += [name for name, child in getattr(command, "commands", {}).items() if not child.hidden]
    words = result.output.replace(",", " ").replace("/", " ").split()
    assert [name for name in names if name not in words] == []
    assert [line for line in result.output.splitlines() if len(line) > 80] == []


def _names(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else []
