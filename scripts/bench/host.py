"""The engine host's benchmark: ours, a real Triton and MLServer with the same models, in turns, on this machine only.

    python scripts/bench/host.py              # everything that is installed, about three minutes
    python scripts/bench/host.py --quick      # a glance, about a minute
    python scripts/bench/host.py --only grpc-64,rest-64 --rounds 5

CPU microseconds of a server's whole process tree for one request hardly depend on what else the machine does;
requests/s and p99 do: a server of many threads gets more of a busy machine than one of few. Read those on a quiet one.
"""

import dataclasses
import json as json_library
import sys
import time
from pathlib import Path
from typing import Annotated

# Started by its path, Python looks for modules in this folder first, where some have names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
sys.path.append(str(Path(__file__).resolve().parents[2]))

import typer  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402

from bench import command, environment, host_report  # noqa: E402
from bench.grpc_h2load import h2load_version  # noqa: E402
from bench.host_cases import CASES  # noqa: E402
from bench.host_run import Plan, carry_out  # noqa: E402
from bench.host_servers import SERVERS  # noqa: E402
from bench.processes import BenchError  # noqa: E402

CASE_HELP = "; ".join(f"{case.name} ({case.title})" for case in CASES.values())


def main(
    only: Annotated[str, typer.Option(metavar="CASES", help=f"Separated by commas, of: {CASE_HELP}.")] = "",
    servers: Annotated[
        str, typer.Option(metavar="SERVERS", help=f"Separated by commas, of: {', '.join(SERVERS)}.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds of every case; medians are shown.")] = 3,
    seconds: Annotated[int, typer.Option(min=1, max=60, help="Length of one round of one server.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="One round of one second: a glance, not a figure.")] = False,
    pin: Annotated[bool, typer.Option(help="Give the servers one core and the load the others (Linux).")] = False,
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where host.json goes.")] = command.RESULTS,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the JSON here, and not into the folder of results.")
    ] = None,
) -> None:
    """Measure engine servers: a real Triton, MLServer and Pointsman's host.

    All serve the same int32 adder as a Python model; a network in ONNX and in TorchScript shows what dynamic batching
    gains, and a tensor of 600 KB what shared memory costs. All traffic stays on 127.0.0.1, and every answer is checked.
    Goals that are missed are shown, and do not change the exit status; exits with 1 where a server has failed.
    """
    names = command.chosen(servers, list(SERVERS), "server") if servers else list(SERVERS)
    missing = [name for name in names if SERVERS[name].find() is None]
    for name in missing:
        command.console.print(f"[yellow]{name} is not here and left out[/] ({SERVERS[name].why()})")
    plan = Plan(
        servers=[name for name in names if name not in missing],
        cases=command.chosen(only, list(CASES), "case") if only else list(CASES),
        rounds=1 if quick else rounds,
        seconds=1 if quick else seconds,
        pin=pin,
    )
    options = {"rounds": plan.rounds, "seconds": plan.seconds, "pin": pin}
    versions = {name: SERVERS[name].find() for name in plan.servers}
    machine = environment.describe(versions, [h2load_version()], options)
    for line in environment.as_lines(machine):
        command.console.print(line, style="dim", highlight=False)
    command.end_by_signal()
    began_at = time.monotonic()
    bars = (TextColumn("{task.description:<70}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*bars, console=command.console) as progress:
            measured = carry_out(plan, progress)
    except BenchError as error:
        command.console.print("[bold red]stopped:[/]", end=" ")
        command.console.print(str(error), markup=False, highlight=False)
        raise typer.Exit(1) from error
    goals = host_report.verdicts(measured)
    host_report.show(measured, [CASES[name] for name in plan.cases], goals, command.console)
    path = json or results / "host.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "environment": machine,
        "samples": [dataclasses.asdict(sample) for sample in measured.samples],
        "failures": [dataclasses.asdict(failure) for failure in measured.failures],
        "copy_us": measured.copy_us,
        "goals": [dataclasses.asdict(verdict) | {"passed": verdict.passed} for verdict in goals],
    }
    path.write_text(json_library.dumps(document, indent=1, ensure_ascii=False) + "\n")
    command.console.print(f"{time.monotonic() - began_at:.0f} s; written: {path}")
    if measured.failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
