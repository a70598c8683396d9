"""The parts common to the commands: options, progress, tables, JSON and the plot."""

import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import environment, plot, report
from bench.medians import Verdict
from bench.plot import Panel
from bench.processes import BenchError
from bench.programs import Proxy
from bench.samples import Case

Measured = TypeVar("Measured")

RESULTS = Path(__file__).resolve().parent / "results"

console = Console(width=None if sys.stdout.isatty() else 150)

Rounds = Annotated[int, typer.Option(min=1, max=50, help="Rounds of every case; medians are shown.")]
Seconds = Annotated[int, typer.Option(min=1, max=60, help="Length of one round of one proxy or server.")]
Quick = Annotated[bool, typer.Option("--quick", help="One round of one second: a glance, not a figure.")]
Pin = Annotated[bool, typer.Option(help="Give the proxies one core, and load and engine the others (Linux).")]
Connections = Annotated[int, typer.Option(min=1, max=2_000, help="Connections of the small requests.")]
Wrk = Annotated[bool, typer.Option(help="Let wrk make the load of small requests where it is installed.")]
Hold = Annotated[
    str, typer.Option(metavar="PROXY", help="Measure nothing: start this proxy, and print how to load and profile it.")
]
ResultsFolder = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of the JSON and the plot.")]
JsonFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON here instead.")]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and how long."""

    proxies: Sequence[str]  # or servers
    cases: Sequence[str]
    rounds: int
    seconds: float
    pin: bool
    connections: int = 32
    use_wrk: bool = False


def case_option(titles: Mapping[str, str]) -> Any:
    """The option that selects cases, given their titles by name."""
    titles_text = "; ".join(f"{name} ({title})" for name, title in titles.items())
    return typer.Option(metavar="CASES", help=f"Separated by commas, of: {titles_text}.")


def name_option(metavar: str, names: Iterable[str]) -> Any:
    """The option that selects proxies, servers or engines."""
    return typer.Option(metavar=metavar, help=f"Separated by commas, of: {', '.join(names)}.")


def chosen(text: str, known: Iterable[str], what: str, default: Sequence[str] | None = None) -> list[str]:
    """The names in a list separated by commas; an empty text selects `default`.

    Raises: typer.BadParameter for an unknown name, and for an empty text without a default.
    """
    known = list(known)
    if not text and default is not None:
        return list(default)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise typer.BadParameter(f"unknown {what}: {', '.join(unknown) or 'none given'}; known: {', '.join(known)}")
    return names


def installed(text: str, proxies: Mapping[str, Proxy[Any]]) -> list[str]:
    """The selected proxies; without a selection, proxies that are not installed are left out with a warning."""
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


def present(text: str, peers: Mapping[str, Any], what: str, why: Callable[[Any], str]) -> dict[str, str]:
    """The version of each selected peer; one that is not installed is left out with a warning and the reason `why`."""
    versions = {name: peers[name].find() for name in chosen(text, peers, what, default=list(peers))}
    for name, version in versions.items():
        if version is None:
            console.print(f"[yellow]{name} is not here and left out[/] ({why(peers[name])})")
    return {name: version for name, version in versions.items() if version is not None}


def hold(lines: Iterable[str]) -> None:
    """Print how to use the proxy that runs now, and wait for Ctrl-C."""
    for line in lines:
        print(line)
    print("Ctrl-C ends it", flush=True)
    signal.pause()


def profile_line(worker: Any) -> list[str]:
    """The command that profiles a worker; none without one."""
    return [f"profile: py-spy record --rate 500 --duration 10 --pid {worker.pid} -o profile.svg"] if worker else []


def end_by_signal() -> None:
    """SIGTERM ends a run as Ctrl-C does: all child processes are stopped."""

    def end(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt the cleanup and leave children
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def run_measurement(measure: Callable[[Progress], Measured], machine: Mapping[str, Any]) -> Measured:
    """Print the machine and measure with a progress bar; exits with 1 if a run stops."""
    for line in environment.as_lines(machine):
        console.print(line, style="dim", highlight=False)
    end_by_signal()
    bars = (TextColumn("{task.description:<70}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*bars, console=console) as progress:
            return measure(progress)
    except BenchError as error:
        console.print("[bold red]stopped:[/]", end=" ")
        console.print(str(error), markup=False, highlight=False)
        raise typer.Exit(1) from error


def carry_out(
    name: str,
    measure: Callable[[Progress], Any],  # returns Results
    cases: Iterable[Case],
    verdicts: Callable[[Any], list[Verdict]],
    panels: Sequence[Panel],
    machine: dict[str, Any],
    folder: Path,
    json: Path | None = None,
    show: Callable[[Any, Iterable[Any], Sequence[Verdict], Console], None] = report.show,
) -> None:
    """Measure, show the tables, and write NAME.json (or `json`) and, with panels, NAME.png into the folder.

    Exits with 1 if a run stops, or if a peer has failed.
    """
    began_at = time.monotonic()
    measured = run_measurement(measure, machine)
    goals = verdicts(measured)
    show(measured, cases, goals, console)
    written = [json or folder / f"{name}.json"]
    written[0].parent.mkdir(parents=True, exist_ok=True)
    report.write_json(measured, goals, machine, written[0])
    if panels:
        folder.mkdir(parents=True, exist_ok=True)
        written.append(folder / f"{name}.png")
        plot.write_plot(measured, panels, machine, written[1])
    console.print(f"{time.monotonic() - began_at:.0f} s; written: {', '.join(map(str, written))}")
    if measured.failures:
        raise typer.Exit(1)
