"""The cost of a shadow: the gateway without one, with a sample of 1 %, and with all requests, in turn on one machine.

    python scripts/bench/shadow.py              # about a minute
    python scripts/bench/shadow.py --quick      # a glance

The figure is CPU microseconds of the worker for one request, and of all processes of the gateway: the shadow process,
which calls the candidate and compares, is one of them. The candidate is the canned engine that answers the clients.
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

SAMPLES = {"none": "", "1 %": "1%", "100 %": "100%", "every one": "100%, max_in_flight: 1000"}
MEASURED = ("small", "unique", "tensor")


def main(
    rounds: command.Rounds = 5,
    seconds: command.Seconds = 2,
    quick: command.Quick = False,
    results: command.ResultsFolder = command.RESULTS,
) -> None:
    """Measure the cost of a shadow for a request."""
    command.end_by_signal()
    with Progress(console=command.console) as progress:
        rounds, seconds = (1, 1) if quick else (rounds, seconds)
        found = compare_variants(list(SAMPLES), shadow_rules, MEASURED, rounds, seconds, progress)
    tell_variants(found, list(SAMPLES), MEASURED, "sample", "mirrored", results / "shadow.json")


def shadow_rules(name: str, upstreams: Ports) -> str:
    """The rules of all benchmarks; each route has a shadow with this sample."""
    rules = configs.pointsman_rules(upstreams)
    if SAMPLES[name]:
        for engine in upstreams:
            shadow = f"engine: {engine}, shadow: {{engine: bulk, sample: {SAMPLES[name]}}}}}"
            rules = rules.replace(f"engine: {engine}}}", shadow)
    return rules


if __name__ == "__main__":
    typer.run(main)
