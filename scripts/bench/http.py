"""The HTTP benchmark: direct, Envoy, nginx and ours, one after another in short rounds, on this machine only.

    python scripts/bench/http.py              # everything that is installed, under 4 minutes
    python scripts/bench/http.py --quick      # a glance, under a minute
    python scripts/bench/http.py --only small,sse --proxies ours,envoy --rounds 5

README.md beside this file says what is measured and how to read it.
"""

import signal
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

# Started by its path, Python looks for modules in this folder first, where `http` is this file and not the standard
# library's package.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402

from bench import environment, plot, report  # noqa: E402
from bench.cases import CASES  # noqa: E402
from bench.processes import BenchError, raise_file_limit  # noqa: E402
from bench.proxies import PROXIES  # noqa: E402
from bench.run import MEMORY, Plan, carry_out  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
IDLE_CONNECTIONS = 5_000
HUGE_BYTES = 2 << 30

console = Console(width=None if sys.stdout.isatty() else 150)


def _chosen(text: str, known: list[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise typer.BadParameter(f"unknown {what}: {', '.join(unknown) or 'none given'}; known: {', '.join(known)}")
    return names


def _installed(text: str) -> list[str]:
    """The proxies asked for; those that are not installed are left out with a warning, or refused when named."""
    if text:
        names = _chosen(text, list(PROXIES), "proxy")
        for name in names:
            if PROXIES[name].find() is None:
                raise typer.BadParameter(f"{name} is not installed here ({PROXIES[name].how_to_get})")
        return names
    names = []
    for name, proxy in PROXIES.items():
        if proxy.find() is None:
            console.print(f"[yellow]{name} is not installed here and left out[/] ({proxy.how_to_get})")
        else:
            names.append(name)
    return names


def _end(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(
    only: Annotated[
        str, typer.Option(metavar="CASES", help=f"Cases, separated by commas: {', '.join([*CASES, MEMORY])}.")
    ] = "",
    proxies: Annotated[
        str, typer.Option(metavar="PROXIES", help=f"Proxies, separated by commas: {', '.join(PROXIES)}.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds of every case; medians are shown.")] = 3,
    seconds: Annotated[int, typer.Option(min=1, max=60, help="Length of one round of one proxy.")] = 2,
    connections: Annotated[int, typer.Option(min=1, max=2_000, help="Connections of the small infer cases.")] = 32,
    quick: Annotated[bool, typer.Option("--quick", help="One round of one second: a glance, not a figure.")] = False,
    wrk: Annotated[bool, typer.Option(help="Let wrk make the small infer load where it is installed.")] = True,
    pin: Annotated[
        bool, typer.Option(help="Give the proxies one core and load and upstream the others (Linux).")
    ] = True,
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where http.json and http.png go.")] = RESULTS,
) -> None:
    """Measure HTTP proxies before a canned engine: direct, Envoy, nginx and Pointsman, one worker each.

    The main figure is CPU microseconds of the proxy for one request or token: unlike requests/s it hardly depends on
    what else this machine does. All traffic stays on 127.0.0.1. Exits with 1 when a proxy gives a wrong answer; goals
    that are missed are shown, and do not change the exit status.
    """
    raise_file_limit()
    names = _installed(proxies)
    plan = Plan(
        proxies=names,
        cases=_chosen(only, [*CASES, MEMORY], "case") if only else [*CASES, MEMORY],
        rounds=1 if quick else rounds,
        seconds=1 if quick else seconds,
        connections=connections,
        use_wrk=wrk,
        pin=pin,
        idle_connections=IDLE_CONNECTIONS,
        huge_bytes=HUGE_BYTES,
    )
    options = {"rounds": plan.rounds, "seconds": plan.seconds, "connections": connections, "pin": pin, "wrk": wrk}
    machine = environment.describe(names, options)
    for line in environment.as_lines(machine):
        console.print(line, style="dim", highlight=False)

    signal.signal(signal.SIGTERM, _end)
    began_at = time.monotonic()
    bars = (TextColumn("{task.description:<70}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*bars, console=console) as progress:
            measured = carry_out(plan, progress)
    except BenchError as error:
        console.print(f"[bold red]stopped:[/] {error}", markup=True, highlight=False)
        raise typer.Exit(1) from error

    report.show(measured, console)
    results.mkdir(parents=True, exist_ok=True)
    report.write_json(measured, machine, results / "http.json")
    plot.write_plot(measured, machine, results / "http.png")
    console.print(f"{time.monotonic() - began_at:.0f} s; written: {results / 'http.json'}, {results / 'http.png'}")


if __name__ == "__main__":
    typer.run(main)
