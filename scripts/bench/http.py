"""The HTTP benchmark: direct, Envoy, nginx and ours, one after another in short rounds, on this machine only.

    python scripts/bench/http.py              # everything that is installed, under 4 minutes
    python scripts/bench/http.py --quick      # a glance, under a minute
    python scripts/bench/http.py --only small,sse --proxies ours,envoy --rounds 5

README.md beside this file says what is measured and how to read it.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

# Started by its path, Python looks for modules in this folder first, where `http` is this file and not the standard
# library's package.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402

from bench import command, environment  # noqa: E402
from bench.cases import CASES  # noqa: E402
from bench.goals import verdicts  # noqa: E402
from bench.processes import raise_file_limit  # noqa: E402
from bench.proxies import PROXIES  # noqa: E402
from bench.run import MEMORY, Plan, carry_out  # noqa: E402
from bench.wrk import wrk_version  # noqa: E402

IDLE_CONNECTIONS = 5_000
HUGE_BYTES = 2 << 30

PANELS = (
    ("small", "cpu_us", "small infer: CPU µs/request"),
    ("small", "units_per_second", "small infer: requests/s"),
    ("unique", "cpu_us", "unique heads: CPU µs/request"),
    ("tensor", "megabytes_per_second", "600 KB tensors: MB/s"),
    ("sse", "cpu_us", "streams: CPU µs/token"),
    ("latency", "p50_us", "one connection: p50 µs"),
)


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
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where http.json and http.png go.")] = command.RESULTS,
) -> None:
    """Measure HTTP proxies before a canned engine: direct, Envoy, nginx and Pointsman, one worker each.

    The main figure is CPU microseconds of the proxy for one request or token: unlike requests/s it hardly depends on
    what else this machine does. All traffic stays on 127.0.0.1. Exits with 1 when a proxy gives a wrong answer; goals
    that are missed are shown, and do not change the exit status.
    """
    raise_file_limit()
    names = command.installed(proxies, PROXIES)
    plan = Plan(
        proxies=names,
        cases=command.chosen(only, [*CASES, MEMORY], "case") if only else [*CASES, MEMORY],
        rounds=1 if quick else rounds,
        seconds=1 if quick else seconds,
        connections=connections,
        use_wrk=wrk,
        pin=pin,
        idle_connections=IDLE_CONNECTIONS,
        huge_bytes=HUGE_BYTES,
    )
    options = {"rounds": plan.rounds, "seconds": plan.seconds, "connections": connections, "pin": pin, "wrk": wrk}
    machine = environment.describe({name: PROXIES[name].find() for name in names}, [wrk_version()], options)
    command.carry_out("http", partial(carry_out, plan), CASES.values(), verdicts, PANELS, machine, results)


if __name__ == "__main__":
    typer.run(main)
