"""Options of `pointsman host` and `pointsman llm` as arguments of an application, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from engines.cli.app import app
from engines.cli.options import boolean


def command_line(command: str, options: Mapping[str, Any]) -> list[str]:
    """The command line with these options, whose names have `_` in place of `-`.

    Raises: ValueError for a name that the command does not have, with the nearest one that it has.
    """
    known = _options(command)
    arguments = [command]
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise ValueError(f"'{name}' is no option of `pointsman {command}`" + (f": {near[0]}?" if near else ""))
        arguments += _arguments(name, known[name], value)
    return arguments


def _options(command: str) -> dict[str, Any]:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return {
        written.removeprefix("--").replace("-", "_"): each
        for each in group.commands[command].params
        for written in each.opts
        if written.startswith("--")
    }


def _arguments(name: str, option: Any, value: Any) -> Iterator[str]:
    written = f"--{name.replace('_', '-')}"
    if option.is_flag:
        is_set = value if isinstance(value, bool) else boolean(name, str(value))
        if is_set or option.secondary_opts:
            yield written if is_set else option.secondary_opts[0]
        return
    for each in value if isinstance(value, list | tuple) else [value]:
        yield f"{written}={str(each).lower() if isinstance(each, bool) else each}"
