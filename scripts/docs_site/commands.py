"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from gateway.cli.app import make_app
from gateway.cli.command_table import PROGRAMS
from scripts.docs_site.pages import Page

PLACE = "reference/commands"


def command_page() -> Page:
    """One page: each command with its arguments and options, by group."""
    root = get_command(make_app())
    lines = [
        "# Commands",
        "",
        "`pointsman COMMAND --help` shows the same. Options also come from variables of the environment.",
        "",
    ]
    for path, command in _commands("pointsman", root):
        lines += [f"## {path} {{#{path.replace(' ', '-')}}}", "", *_about(command), ""]
        lines += [*(_program(path) if path.split()[-1] in PROGRAMS else _parameters(command)), ""]
    return Page("gateway/cli/app.py", PLACE, "Commands", lines)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if not child.hidden:
            if not hasattr(child, "commands"):
                yield f"{path} {name}", child
            yield from _commands(f"{path} {name}", child)


def _program(path: str) -> Iterator[str]:
    """The help of an engine's own program."""
    command = [sys.executable, "-m", "engines", path.split()[-1], "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"})
    yield "```text"
    yield from done.stdout.strip().splitlines()
    yield "```"


def _about(command: Any) -> list[str]:
    return [_plain(line) for line in inspect.cleandoc(command.help or "").splitlines()]


def _parameters(command: Any) -> Iterator[str]:
    shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    if shown:
        yield "| argument or option | default | meaning |"
        yield "|---|---|---|"
    for each in shown:
        is_option = each.param_type_name == "option"
        names = ", ".join([*each.opts, *each.secondary_opts]) if is_option else (each.metavar or each.name.upper())
        yield f"| `{names}`{_variable(each)} | {_default(each)} | {_cell(getattr(each, 'help', None) or '')} |"


def _variable(parameter: Any) -> str:
    name = parameter.envvar
    return f" `{name}`" if isinstance(name, str) else ""


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or callable(value) or value in ((), [], ""):
        return ""
    return f"`{_cell(str(value))}`"


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


def _plain(text: str) -> str:
    """Help may have what Markdown reads as tags."""
    return text.replace("<", "&lt;").replace("\b", "")
