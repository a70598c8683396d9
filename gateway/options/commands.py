"""Commands whose options come from several sources, with a help that cuts no name."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from gateway.options.sources import is_regular, name_variables, warn_of_unknown_variables


def _write_options(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = _help_record(command, param, ctx)
        if record is not None:
            panels.setdefault(getattr(param, "rich_help_panel", None) or "Other", []).append(record)
    for title, records in panels.items():
        with formatter.section(title):
            formatter.write_dl(records)


def _help_record(command: TyperCommand | TyperGroup, param: Any, ctx: Any) -> tuple[str, str] | None:
    """Without the variable where that is a regular one."""
    shows, param.show_envvar = param.show_envvar, param.show_envvar and not is_regular(command, param)
    try:
        record: tuple[str, str] | None = param.get_help_record(ctx)
        return record
    finally:
        param.show_envvar = shows


class PlainCommand(TyperCommand):
    """A command whose `--help` is text: a long option has a line of its own. The columns of rich cut its name."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more | {"rich_markup_mode": None})
        name_variables(self)

    def invoke(self, ctx: Any) -> Any:
        warn_of_unknown_variables(self)
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """The same for a command with commands below it."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more | {"rich_markup_mode": None})
        name_variables(self)

    def invoke(self, ctx: Any) -> Any:
        warn_of_unknown_variables(self)
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)
