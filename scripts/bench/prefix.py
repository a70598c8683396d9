"""The share of prompt tokens that engines find in their prefix caches, by how the gateway balances: real paged engines
with small caches, conversations that grow, two workers.

    python scripts/bench/prefix.py                     # three engines, 48 conversations of 6 turns, about two minutes
    python scripts/bench/prefix.py --conversations 12 --turns 3       # a glance

README.md beside this file says how to read it.
"""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

# Started by its path, Python looks for modules in this folder first, where some have names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
sys.path.append(str(Path(__file__).resolve().parents[2]))

import json as json_format  # noqa: E402

import typer  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import command, environment  # noqa: E402
from bench.prefix_run import POLICIES, Measured, Setup, carry_out  # noqa: E402
from bench.processes import Children  # noqa: E402
from bench.programs import Site  # noqa: E402


def main(
    engines: Annotated[int, typer.Option(min=2, max=8, help="Servers of the model.")] = 3,
    conversations: Annotated[int, typer.Option(min=4, max=1000)] = 48,
    turns: Annotated[int, typer.Option(min=2, max=20, help="Of each conversation.")] = 6,
    blocks: Annotated[int, typer.Option(min=160, help="Of 16 tokens, in the cache of each engine.")] = 400,
    clients: Annotated[int, typer.Option(min=1, max=64, help="Requests at a time.")] = 6,
    workers: Annotated[int, typer.Option(min=1, max=8, help="Of the gateway.")] = 2,
    rounds: command.Rounds = 3,
    json: Annotated[Path, typer.Option(metavar="FILE", help="Where the figures go.")] = command.RESULTS / "prefix.json",
) -> None:
    """Measure the hit rate of prefix caches behind a gateway, by its balancing policy, in turns on the same engines."""
    setup = Setup(engines, conversations, turns, blocks, clients, workers, rounds)
    machine = environment.describe({}, [], {name: getattr(setup, name) for name in Setup.__slots__})

    def measure(progress: Progress) -> Measured:
        with tempfile.TemporaryDirectory(prefix="prefix-bench-") as folder, Children(Path(folder)) as children:
            return carry_out(setup, Site(children, Path(folder), None), progress)

    measured = command.run_measurement(measure, machine)
    table = Table(title=f"{conversations} conversations of {turns} turns, {engines} engines of {blocks} blocks")
    for column in ("balance", "hit rate", "each round", "p50 ms", "p99 ms"):
        table.add_column(column, justify="left" if column == "balance" else "right")
    for name in POLICIES:
        each = " ".join(f"{rate:.1%}" for rate in measured.rates[name])
        table.add_row(
            name,
            f"{measured.rate(name):.1%}",
            each,
            *(f"{measured.latency(name, share) * 1e3:.0f}" for share in (0.5, 0.99)),
        )
    command.console.print(table)
    command.console.print(f"the most that one cache for all could hit: {measured.most:.1%}")
    json.parent.mkdir(parents=True, exist_ok=True)
    document = {"environment": machine, "rates": measured.rates, "seconds": measured.seconds, "most": measured.most}
    json.write_text(json_format.dumps(document, indent=1) + "\n")
    command.console.print(f"written: {json}")


if __name__ == "__main__":
    typer.run(main)
