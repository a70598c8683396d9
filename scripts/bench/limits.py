"""The cost of limits: the gateway without, and with each kind of limit, in turn on one machine.

    python scripts/bench/limits.py              # about a minute
    python scripts/bench/limits.py --quick      # a glance

The figure is CPU microseconds of the worker for one request, and of all processes of the gateway, including its Redis.
No limit is ever reached: every reply is the engine's.
"""

import sys
from pathlib import Path

# Started by its path, Python looks for modules in this folder first, where some have the names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402
from rich.progress import Progress  # noqa: E402

from bench import command, configs  # noqa: E402
from bench.processes import Ports  # noqa: E402
from bench.variants import compare_variants, tell_variants  # noqa: E402

# Far above what one machine can send.
_PLENTY = 10_000_000
LIMITS = {
    "none": "",
    "requests": f"{{name: a, requests_per_second: {_PLENTY}}}",
    "requests per tenant": f"{{name: a, per: tenant, requests_per_second: {_PLENTY}}}",
    "concurrency": f"{{name: a, concurrency: {_PLENTY}}}",
    "both per key": f"{{name: a, per: key, requests_per_second: {_PLENTY}, concurrency: {_PLENTY}}}",
    "two limits": f"{{name: a, per: tenant, requests_per_second: {_PLENTY}}}, {{name: b, concurrency: {_PLENTY}}}",
}
MEASURED = ("small", "unique")


def main(
    rounds: command.Rounds = 5,
    seconds: command.Seconds = 2,
    quick: command.Quick = False,
    results: command.ResultsFolder = command.RESULTS,
) -> None:
    """Measure what limits cost a request."""
    command.end_by_signal()
    with Progress(console=command.console) as progress:
        rounds, seconds = (1, 1) if quick else (rounds, seconds)
        found = compare_variants(list(LIMITS), limits_rules, MEASURED, rounds, seconds, progress)
    tell_variants(found, list(LIMITS), MEASURED, "limits", "limits", results / "limits.json")


def limits_rules(name: str, upstreams: Ports) -> str:
    """The rules of all benchmarks, with these limits."""
    return configs.pointsman_rules(upstreams) + (f"limits: [{LIMITS[name]}]\n" if LIMITS[name] else "")


if __name__ == "__main__":
    typer.run(main)
