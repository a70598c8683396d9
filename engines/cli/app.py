"""The commands of the engines, as one typer app; `pointsman COMMAND` runs them too. Commands import their modules when
they run, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from engines.cli.analyze import analyze
from engines.cli.convert import convert
from engines.cli.doctor import doctor
from engines.cli.fleet import fleet
from engines.cli.host import host
from engines.cli.llm import llm
from engines.cli.llm_bench import bench
from gateway.net.collector import relax_collector
from gateway.options.commands import PlainCommand

P = ParamSpec("P")

app = typer.Typer(
    name="engines",
    help="Engines behind the gateway. Start with `host --model-repository DIR`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _engines() -> None:
    """Require the name of a command."""


def exiting(command: Callable[P, int | None]) -> Callable[P, None]:
    """A command whose result is the exit status."""

    @wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        raise typer.Exit(command(*arguments, **options) or 0)

    return run


def samples(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; created where missing.")],
) -> int:
    """Write sample models that run on this machine, a fleet that serves them, and rules for the gateway.

    Then: `pointsman fleet DIR/fleet.yaml`, and in another terminal `pointsman serve --rules DIR/rules`.
    """
    from engines.samples import repository

    written = repository.write(directory)
    for one in written:
        names = ", ".join(one.sample.models)
        if one.why_absent is None:
            typer.echo(f"{one.sample.agent}: {names}: {one.sample.about}")
        else:
            typer.secho(f"left out: {names}: {one.why_absent}", fg=typer.colors.YELLOW, err=True)
    if all(one.why_absent is not None for one in written):
        typer.secho('nothing can run here: pip install "pointsman[engines]"', fg=typer.colors.RED, err=True)
        return 1
    typer.echo(f"next: pointsman fleet {directory}/fleet.yaml, and beside it pointsman serve --rules {directory}/rules")
    return 0


app.command(cls=PlainCommand)(exiting(host))
for _command in (fleet, samples, analyze, convert, doctor):
    app.command()(exiting(_command))
llm.command("bench")(exiting(bench))
app.add_typer(llm)


def main() -> None:
    relax_collector()
    app(prog_name="pointsman")
