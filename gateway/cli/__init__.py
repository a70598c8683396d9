"""The command line: `pointsman COMMAND`. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from typing import Annotated, ParamSpec

import typer

from gateway.cli import conversations, engines, experiments, keys, operator_commands, recordings, rules, service, shadow
from gateway.cli.admin_client import GatewayTyper
from gateway.cli.check import check
from gateway.cli.engine_commands import CONTEXT, PROGRAMS, doctor, program
from gateway.cli.engine_settings import engine_settings
from gateway.cli.explain import explain
from gateway.cli.serve import serve
from gateway.cli.up import up
from gateway.net.collector import relax_collector

P = ParamSpec("P")

app = GatewayTyper(
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


_GATEWAY, _RULES, _FLEET = "The gateway", "Rules and traffic", "A running gateway"
_PROGRAMS = "Engines and this machine"
_COMMANDS: dict[str, tuple[Callable[..., int | None], ...]] = {
    _GATEWAY: (up, serve),
    _RULES: (check, explain, recordings.replay),
    _FLEET: (
        *(engines.engines, engines.drain, engines.models, engines.load, engines.unload, engine_settings),
        *(operator_commands.requests, operator_commands.cancel),
        *(operator_commands.log_level, operator_commands.audit, operator_commands.page),
    ),
}
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_exiting(_command))
app.add_typer(experiments.app, name="experiments", rich_help_panel=_FLEET)
app.add_typer(operator_commands.limits, name="limits", rich_help_panel=_FLEET)
app.add_typer(operator_commands.budgets, name="budgets", rich_help_panel=_FLEET)
for _name, _group, _panel in (
    ("endpoints", engines.endpoints, _FLEET),
    ("conversations", conversations.app, _FLEET),
    ("keys", keys.app, _GATEWAY),
    ("shadow", shadow.app, _FLEET),
    ("rules", rules.app, _RULES),
    ("service", service.app, _GATEWAY),
    ("recordings", recordings.app, _RULES),
):
    app.add_typer(_group, name=_name, no_args_is_help=True, rich_help_panel=_panel)
app.command(context_settings=CONTEXT, add_help_option=False, rich_help_panel=_PROGRAMS)(_exiting(doctor))
for _name in PROGRAMS:
    app.command(_name, context_settings=CONTEXT, add_help_option=False, rich_help_panel=_PROGRAMS)(program(_name))


def main() -> None:
    relax_collector()
    app()
