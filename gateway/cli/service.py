"""`pointsman service`: Pointsman as a service of the system, by launchd on a Mac and by systemd on Linux."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.service.definition import ServiceDefinition
    from gateway.service.managers import Manager

app = typer.Typer(help="Run Pointsman as a service of the system: launchd on a Mac, systemd on Linux.")

Name = Annotated[
    str | None, typer.Option(help="The service's name.", show_default="the command: serve, fleet, host, llm")
]
RequiredName = Annotated[str, typer.Option(help="The service's name.")]
Agent = Annotated[
    bool, typer.Option("--agent", help="A service of the user, from log-in to log-out, instead of the machine's.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be written and run, without doing it.")]
Force = Annotated[bool, typer.Option("--force", help="Replace or remove a file of another program.")]


@app.command(context_settings={"allow_interspersed_args": False})
def install(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="What to run: serve --rules rules.yaml.", show_default=False),
    ],
    name: Name = None,
    agent: Agent = False,
    user: Annotated[
        str | None, typer.Option(help="The user that it runs as.", show_default="who ran sudo; you with --agent")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A variable, stored in a file that only its user can read. May be repeated."
        ),
    ] = None,
    directory: Annotated[Path | None, typer.Option(help="The working directory.", show_default="this one")] = None,
    stop_seconds: Annotated[
        int,
        typer.Option(min=1, help="From SIGTERM to SIGKILL; longer than --drain-timeout and a fleet's stop_timeout."),
    ] = 90,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Write the service's file and start it: pointsman service install -- serve --rules rules.yaml

    A daemon of the machine needs root: sudo. It starts with the machine, and again when it ends. Files of others are
    never overwritten without --force.
    """
    from gateway.service import installation

    definition = _definition(
        name or arguments[0], arguments, agent, user, directory, stop_seconds, _variables(env or [])
    )
    _needs_root(agent, dry_run)
    _carried_out(lambda: installation.install(_manager(), definition, typer.echo, is_dry=dry_run, force=force))


@app.command()
def uninstall(
    name: RequiredName,
    agent: Agent = False,
    user: Annotated[str | None, typer.Option(help="As it was installed.")] = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Stop the service and remove its files."""
    from gateway.service import installation

    definition = _definition(name, ["serve"], agent, user, None, 90, {})
    _needs_root(agent, dry_run)
    _carried_out(lambda: installation.uninstall(_manager(), definition, typer.echo, is_dry=dry_run, force=force))


@app.command()
def status(name: RequiredName, agent: Agent = False) -> None:
    """Show the service's status in launchd or systemd; the exit status is theirs."""
    from gateway.service.installation import run

    definition = _definition(name, ["serve"], agent, None if agent else getpass.getuser(), None, 90, {})
    raise typer.Exit(run(_manager().status(definition)))


def _manager() -> Manager:
    from gateway.service.managers import Launchd, Systemd

    return Launchd() if sys.platform == "darwin" else Systemd()


def _definition(
    name: str,
    arguments: list[str],
    agent: bool,
    user: str | None,
    directory: Path | None,
    stop_seconds: int,
    environment: dict[str, str],
) -> ServiceDefinition:
    from gateway.service.definition import ServiceDefinition, ServiceError, home_of

    if agent and user is not None:
        raise typer.BadParameter("an agent is the user's own: leave --user out", param_hint="--user")
    if not agent and user is None:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    try:
        home = Path.home() if user is None else home_of(user)
    except ServiceError as error:
        raise typer.BadParameter(str(error), param_hint="--user") from error
    place = (directory or Path()).absolute()
    if not place.is_dir():
        raise typer.BadParameter(f"there is no folder {place}", param_hint="--directory")
    return ServiceDefinition(name, _program(), arguments, user, home, place, environment, stop_seconds)


def _program() -> list[str]:
    """The script of this installation; without one the module, and no folder of its name in the working directory."""
    script = Path(sys.executable).with_name("pointsman")
    return [str(script)] if script.exists() else [sys.executable, "-P", "-m", "gateway"]


def _variables(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, separator, _ in pairs:
        if not separator:
            raise typer.BadParameter(f"it is NAME=VALUE, not '{name}'", param_hint="--env")
    return {name: value for name, _, value in pairs}


def _needs_root(agent: bool, dry_run: bool) -> None:
    if not agent and not dry_run and os.geteuid() != 0:
        typer.echo("pointsman service: a service of the machine needs root: run it by sudo, or with --agent", err=True)
        raise typer.Exit(1)


def _carried_out(work: Callable[[], None]) -> None:
    from gateway.service.definition import ServiceError

    try:
        work()
    except ServiceError as error:
        typer.echo(f"pointsman service: {error}", err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        typer.echo(f"pointsman service: {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(1) from error
