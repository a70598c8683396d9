"""The command line as one typer app, with all commands or with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from gateway.cli.admin_client import GatewayTyper
from gateway.cli.command_table import COMMANDS, GROUPS, PROGRAM_PANEL, PROGRAMS, CommandEntry
from gateway.cli.engine_programs import execute
from gateway.options.commands import PlainCommand

P = ParamSpec("P")
T = TypeVar("T")

# Their options, `--help` included, are parsed by the programs.
_PROGRAM: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    "add_help_option": False,
    "rich_help_panel": PROGRAM_PANEL,
}


def make_app(only: str | None = None) -> GatewayTyper:
    """The app; `only` is the one command or group that it has, so that no other's modules are imported."""
    app = GatewayTyper(
        name="pointsman",
        help="One inference URL in front of every engine. Start with `pointsman up` for a demo, or write a rules file "
        "and run `pointsman serve --rules FILE`.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_options)
    for name, entry in _chosen(COMMANDS, only):
        options = _PROGRAM if entry.panel == PROGRAM_PANEL else {"rich_help_panel": entry.panel}
        kind = PlainCommand if entry.has_sources else None
        app.command(name, cls=kind, **options)(_exiting(_found(entry)))
    for name, entry in _chosen(GROUPS, only):
        more: dict[str, Any] = {"no_args_is_help": True} if entry.needs_name else {}
        app.add_typer(_found(entry), name=name, rich_help_panel=entry.panel, **more)
    for name, description in _chosen(PROGRAMS, only):
        app.command(name, **_PROGRAM)(_program(name, description))
    return app


def _chosen(table: Mapping[str, T], only: str | None) -> Iterator[tuple[str, T]]:
    return ((name, entry) for name, entry in table.items() if only in (None, name))


def _found(entry: CommandEntry) -> Any:
    return getattr(import_module(f"gateway.cli.{entry.module}"), entry.attribute)


def _options(
    show_version: Annotated[bool, typer.Option("--version", help="Print version and commit.")] = False,
) -> None:
    if show_version:
        from gateway.cli.commit import description

        typer.echo(description())
        raise typer.Exit


def _exiting(command: Callable[P, int | None]) -> Callable[P, None]:
    """A command whose result is the exit status."""

    @wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        raise typer.Exit(command(*arguments, **options) or 0)

    return run


def _program(name: str, description: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        execute(name, context.args)

    run.__doc__ = description
    return run
