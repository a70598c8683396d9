"""`pointsman fleet`: several engines as one, supervised and registered with the gateway."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engines.cli.options import refuse

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from engines.fleet.agent import Agent
    from engines.fleet.config import LoadedFleet
    from engines.fleet.supervisor import Supervisor

_TABLE_SECONDS = 0.5
_COLUMNS = ("agent", "state", "for", "pid", "ports", "memory", "power", "restarts")
_COLOURS = {"ready": "green", "starting": "cyan", "unready": "yellow", "silent": "yellow", "waiting": "red"}


def fleet(
    file: Annotated[Path, typer.Argument(metavar="FLEET.YAML", help="The agents; see engines/fleet/README.md.")],
    check: Annotated[bool, typer.Option("--check", help="Report the problems of the file, and start nothing.")] = False,
    rules: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write the gateway's rules to this file, for `pointsman serve --rules`; overrides the file's 'rules'.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write pids and ports here, as JSON, once all agents are ready.")
    ] = None,
) -> int:
    """Start the agents of a fleet file, supervise them, and restart those that fail, until SIGTERM or Ctrl-C.

    SIGHUP reads the file again and starts and stops only what changed. SIGTERM stops all agents, the last one first; a
    second one ends them at once. Exit code: 0, 1 where an agent had to be killed, 2 where the file is invalid.
    """
    from engines.fleet.config import load_fleet

    loaded = load_fleet(file)
    for problem in loaded.problems:
        typer.secho(str(problem), fg=typer.colors.RED if problem.is_error else typer.colors.YELLOW, err=True)
    if loaded.fleet is None:
        typer.echo(f"{file}: refused", err=True)
        return 1 if check else 2
    if check:
        typer.echo(f"{file}: ok: {', '.join(agent.name for agent in loaded.fleet.agents)}")
        return 0
    return _run(file, loaded, rules, ready_file)


def _run(file: Path, loaded: LoadedFleet, rules: Path | None, ready_file: Path | None) -> int:
    import asyncio

    from rich.console import Console

    from engines.fleet.ports import NoFreePortError
    from engines.fleet.state_files import LockedError
    from engines.fleet.supervisor import Supervisor

    assert loaded.fleet is not None
    console = Console()
    _set_up_logging(console)
    supervisor = Supervisor(file, loaded.fleet, rules=rules, ready_file=ready_file)
    try:
        return asyncio.run(_shown(supervisor, console))
    except (LockedError, NoFreePortError, OSError) as error:
        return refuse("fleet", error)


def _set_up_logging(console: Console) -> None:
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
    """Run the supervisor, on a terminal with the table below its log."""
    import asyncio

    from rich.live import Live

    if not console.is_terminal:
        return await supervisor.run()
    loop = asyncio.get_running_loop()

    live = Live(console=console, auto_refresh=False)

    async def draw() -> None:
        with suppress(OSError):  # the terminal may be closed while we run
            while True:
                live.update(_state_table(supervisor.agents.values(), loop.time()), refresh=True)
                await asyncio.sleep(_TABLE_SECONDS)

    live.start()
    drawing = loop.create_task(draw())
    try:
        return await supervisor.run()
    finally:
        drawing.cancel()
        with suppress(OSError):
            live.update(_state_table(supervisor.agents.values(), loop.time()))
            live.stop()


def _state_table(agents: Iterable[Agent], now: float) -> Table:
    """A row for each agent; `now` is the loop's time."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*_COLUMNS)
    for agent in agents:
        table.add_row(
            Text(agent.spec.name),
            Text(agent.state.value, style=_COLOURS.get(agent.state.value, "dim")),
            _span(now - agent.since),
            str(agent.pid or "-"),
            Text(" ".join(f"{name}:{port}" for name, port in agent.ports.items()) or "-"),
            _memory(agent),
            agent.spec.power.value,
            str(agent.restarts),
        )
    return table


def _memory(agent: Agent) -> Text:
    from rich.text import Text

    budget = agent.spec.memory_bytes
    used = f"{agent.memory_bytes / 2**20:,.0f}" if agent.memory_bytes else "-"
    if budget is None:
        return Text(f"{used} MiB")
    is_near = agent.memory_bytes > 0.9 * budget
    return Text(f"{used} of {budget / 2**20:,.0f} MiB", style="red" if is_near else "")


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
