"""`pointsman fleet`: several engines as one, kept running and known to the gateway."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from engines.fleet.config import LoadedFleet
    from engines.fleet.supervisor import Supervisor

_TABLE_SECONDS = 0.5


def fleet(
    file: Annotated[Path, typer.Argument(metavar="FLEET.YAML", help="The agents; engines/fleet/README.md says how.")],
    check: Annotated[
        bool, typer.Option("--check", help="Say all that is wrong with the file, and start nothing.")
    ] = False,
    rules: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Keep this rule file for the gateway (`pointsman serve --rules` of it, or of its directory); before "
            "the file's own 'rules'.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write pids and ports here, as JSON, once all agents are ready.")
    ] = None,
) -> int:
    """Start the agents of a fleet file, watch them, and restart what fails, until SIGTERM or Ctrl-C.

    SIGHUP reads the file again and starts and stops only what changed. SIGTERM stops all agents, the last one first; a
    second one ends them at once. Exit code: 0, 1 where an agent had to be killed, 2 where the file is wrong.
    """
    from engines.fleet.config import load_fleet

    loaded = load_fleet(file)
    _print_problems(loaded)
    if loaded.fleet is None:
        typer.echo(f"{file}: refused", err=True)
        return 1 if check else 2
    if check:
        typer.echo(f"{file}: ok: {', '.join(agent.name for agent in loaded.fleet.agents)}")
        return 0
    return _run(file, loaded, rules, ready_file)


def _print_problems(loaded: LoadedFleet) -> None:
    for problem in loaded.problems:
        typer.secho(str(problem), fg=typer.colors.RED if problem.is_error else typer.colors.YELLOW, err=True)


def _run(file: Path, loaded: LoadedFleet, rules: Path | None, ready_file: Path | None) -> int:
    import asyncio

    from rich.console import Console

    from engines.fleet.files import LockedError
    from engines.fleet.ports import NoFreePortError
    from engines.fleet.supervisor import Supervisor

    assert loaded.fleet is not None
    console = Console()
    _set_up_logging(console)
    supervisor = Supervisor(file, loaded.fleet, rules=rules, ready_file=ready_file)
    try:
        return asyncio.run(_shown(supervisor, console))
    except (LockedError, NoFreePortError, OSError) as error:
        typer.echo(f"pointsman fleet: {error}", err=True)
        return 1


def _set_up_logging(console: Console) -> None:
    """Lines with time and level; on a terminal they scroll by above the table."""
    from rich.logging import RichHandler

    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False, omit_repeated_times=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("pointsman")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


async def _shown(supervisor: Supervisor, console: Console) -> int:
    """Run it, with the table below its messages where there is a terminal."""
    import asyncio

    from rich.live import Live

    from engines.fleet.table import state_table

    if not console.is_terminal:
        return await supervisor.run()
    loop = asyncio.get_running_loop()

    live = Live(console=console, auto_refresh=False)

    async def draw() -> None:
        with suppress(OSError):  # the terminal may be closed while we run
            while True:
                live.update(state_table(supervisor.agents.values(), loop.time()), refresh=True)
                await asyncio.sleep(_TABLE_SECONDS)

    live.start()
    drawing = loop.create_task(draw())
    try:
        return await supervisor.run()
    finally:
        drawing.cancel()
        with suppress(OSError):
            live.update(state_table(supervisor.agents.values(), loop.time()))
            live.stop()
