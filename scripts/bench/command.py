"""What the commands share: reading lists of names, showing progress, and leaving tables, JSON and a picture behind."""

import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import environment, plot, report
from bench.medians import Verdict
from bench.plot import Panel
from bench.processes import BenchError
from bench.programs import Proxy
from bench.samples import Case, Results

RESULTS = Path(__file__).resolve().parent / "results"

console = Console(width=None if sys.stdout.isatty() else 150)


def chosen(text: str, known: list[str], what: str) -> list[str]:
    """The names in a list separated by commas.

    Raises: typer.BadParameter where one is not known.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise typer.BadParameter(f"unknown {what}: {', '.join(unknown) or 'none given'}; known: {', '.join(known)}")
    return names


def installed(text: str, proxies: Mapping[str, Proxy[Any]]) -> list[str]:
    """The proxies asked for; those that are not installed are left out with a warning, or refused when named."""
    if text:
        names = chosen(text, list(proxies), "proxy")
        for name in names:
            if proxies[name].find() is None:
                raise typer.BadParameter(f"{name} is not installed here ({proxies[name].how_to_get})")
        return names
    names = []
    for name, proxy in proxies.items():
        if proxy.find() is None:
            console.print(f"[yellow]{name} is not installed here and left out[/] ({proxy.how_to_get})")
        else:
            names.append(name)
    return names


def end_by_signal() -> None:
    """SIGTERM ends a run as Ctrl-C does: with all that it started."""

    def end(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would end the clearing up, and leave children
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def carry_out(
    name: str,
    measure: Callable[[Progress], Results],
    cases: Iterable[Case],
    verdicts: Callable[[Results], list[Verdict]],
    panels: Sequence[Panel],
    machine: dict[str, Any],
    folder: Path,
    json: Path | None = None,
    show: Callable[[Any, Iterable[Any], Sequence[Verdict], Console], None] = report.show,
) -> Results:
    """Measure, show the tables, and write NAME.json (or `json`) and NAME.png into the folder; exits with 1 where a run
    stops."""
    for line in environment.as_lines(machine):
        console.print(line, style="dim", highlight=False)
    end_by_signal()
    began_at = time.monotonic()
    bars = (TextColumn("{task.description:<70}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*bars, console=console) as progress:
            measured = measure(progress)
    except BenchError as error:
        console.print("[bold red]stopped:[/]", end=" ")
        console.print(str(error), markup=False, highlight=False)
        raise typer.Exit(1) from error

    goals = verdicts(measured)
    show(measured, cases, goals, console)
    folder.mkdir(parents=True, exist_ok=True)
    json_path, picture_path = json or folder / f"{name}.json", folder / f"{name}.png"
    report.write_json(measured, goals, machine, json_path)
    plot.write_plot(measured, panels, machine, picture_path)
    console.print(f"{time.monotonic() - began_at:.0f} s; written: {json_path}, {picture_path}")
    return measured
