"""The HTTP benchmark: direct, Envoy, nginx and Pointsman, one after another in short rounds, on this machine only.

    python scripts/bench/http.py              # everything that is installed, under 4 minutes
    python scripts/bench/http.py --quick      # a glance, under a minute
    python scripts/bench/http.py --only small,sse --proxies ours,envoy --rounds 5

README.md beside this file describes the measurements and how to read them.
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
from bench.proxies import PROXIES  # noqa: E402
from bench.run import ALL_CASES, carry_out  # noqa: E402
from bench.wrk import wrk_version  # noqa: E402

PANELS = (
    ("mixed", "cpu_us", "mixed: CPU µs/request"),
    ("rate-60", "p99_us", "mixed at 60 % of Envoy's requests/s: p99 µs"),
    ("small", "cpu_us", "small infer: CPU µs/request"),
    ("small", "units_per_second", "small infer: requests/s"),
    ("keys", "cpu_us", "small infer without and with API keys: CPU µs/request"),
    ("unique", "cpu_us", "unique heads: CPU µs/request"),
    ("tensor", "megabytes_per_second", "600 KB tensors: MB/s"),
    ("sse", "cpu_us", "streams: CPU µs/token"),
    ("latency", "p50_us", "one connection: p50 µs"),
)


def main(
    only: Annotated[str, command.case_option(ALL_CASES)] = "",
    proxies: Annotated[str, command.name_option("PROXIES", PROXIES)] = "",
    rounds: command.Rounds = 3,
    seconds: command.Seconds = 2,
    connections: command.Connections = 32,
    quick: command.Quick = False,
    wrk: command.Wrk = True,
    pin: command.Pin = True,
    results: command.ResultsFolder = command.RESULTS,
    json: command.JsonFile = None,
) -> None:
    """Measure HTTP proxies before a canned engine: direct, Envoy, nginx and Pointsman, one worker each.

    The main figure is CPU microseconds of the proxy for one request or token: unlike requests/s it hardly depends on
    what else this machine does. All traffic stays on 127.0.0.1. Exits with 1 when a proxy gives a wrong answer; missed
    goals are shown, and do not change the exit status.
    """
    names = command.installed(proxies, PROXIES)
    cases = command.chosen(only, ALL_CASES, "case", default=list(ALL_CASES))
    rounds, seconds = (1, 1) if quick else (rounds, seconds)
    plan = command.Plan(names, cases, rounds, seconds, pin, connections, wrk)
    options = {"rounds": rounds, "seconds": seconds, "connections": connections, "pin": pin, "wrk": wrk}
    machine = environment.describe({name: PROXIES[name].find() for name in names}, [wrk_version()], options)
    command.carry_out("http", partial(carry_out, plan), CASES.values(), verdicts, PANELS, machine, results, json)


if __name__ == "__main__":
    typer.run(main)
