"""The command line: `pointsman COMMAND`. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from typing import Annotated, ParamSpec

import typer

from gateway.cli import conversations, experiments, keys, limits, operator_commands, recordings, rules, shadow
from gateway.cli import service as service_commands
from gateway.cli.check import check
from gateway.cli.doctor import doctor
from gateway.cli.engine_commands import CONTEXT, SERVICES, service
from gateway.cli.engines import drain, engines
from gateway.cli.explain import explain
from gateway.cli.replay import replay
from gateway.cli.serve import serve
from gateway.cli.up import up

P = ParamSpec("P")

app = typer.Typer(
    name="pointsman",
    help="One inference URL in front of every engine. Start with `pointsman up` for a demo, or write a rules file and "
    "run `pointsman serve --rules FILE`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _options(show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show_version:
        typer.echo(f"pointsman {version('pointsman')}")
        raise typer.Exit


def _exiting(command: Callable[P, int | None]) -> Callable[P, None]:
    """A command whose result is the exit status."""

    @wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        raise typer.Exit(command(*arguments, **options) or 0)

    return run


_COMMANDS: tuple[Callable[..., int | None], ...] = (
    *(up, serve, check, explain, replay, engines, drain),
    *(
        operator_commands.models,
        operator_commands.load,
        operator_commands.unload,
        operator_commands.requests,
        operator_commands.cancel,
    ),
    *(operator_commands.log_level, operator_commands.audit),
)
for _command in _COMMANDS:
    app.command()(_exiting(_command))
app.add_typer(experiments.app, name="experiments")
app.add_typer(limits.app, name="limits")
app.add_typer(operator_commands.endpoints, name="endpoints", no_args_is_help=True)
app.add_typer(conversations.app, name="conversations", no_args_is_help=True)
app.add_typer(keys.app, name="keys", no_args_is_help=True)
app.add_typer(shadow.app, name="shadow", no_args_is_help=True)
app.add_typer(rules.app, name="rules", no_args_is_help=True)
app.add_typer(service_commands.app, name="service", no_args_is_help=True)
app.add_typer(recordings.app, name="recordings", no_args_is_help=True)
app.command(context_settings=CONTEXT, add_help_option=False)(_exiting(doctor))
for _name in SERVICES:
    app.command(_name, context_settings=CONTEXT, add_help_option=False)(service(_name))


def main() -> None:
    """Run the command that the arguments name."""
    app()
