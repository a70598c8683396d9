"""The time to the first token behind a long prefix: without stored blocks, with the engine's own, and with those in
Redis; in one run, on this machine, with a redis-server of its own.

    python scripts/bench/kv_store.py                     # a Llama of 150 M parameters, 2,000 tokens, five rounds
    python scripts/bench/kv_store.py --shape tiny --rounds 2
    python scripts/bench/kv_store.py --codec int8 --tokens 4000 --redis redis://elsewhere

README.md beside this file says how to read it.
"""

import statistics
import sys
from pathlib import Path
from typing import Annotated, Literal

# Started by its path, Python looks for modules in this folder first, where some have names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
sys.path.append(str(Path(__file__).resolve().parents[2]))

import json as json_format  # noqa: E402

import typer  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import command, environment  # noqa: E402
from bench.kv_store_run import CASES, Measured, Setup, carry_out, own_redis  # noqa: E402
from bench.llm_model import SHAPES, cache_folder  # noqa: E402


def main(
    rounds: command.Rounds = 5,
    tokens: Annotated[int, typer.Option(min=64, max=7000, help="Of the prefix.")] = 2000,
    shape: Annotated[
        str, typer.Option(metavar="SHAPE", help=f"Of the model's size, of: {', '.join(SHAPES)}.")
    ] = "150m",
    dtype: Annotated[Literal["bfloat16", "float32"], typer.Option(help="Of weights and cache.")] = "bfloat16",
    codec: Annotated[Literal["raw", "int8"], typer.Option(help="Of the stored blocks.")] = "raw",
    threads: Annotated[int, typer.Option(min=1, max=256, help="Of every engine.")] = 2,
    redis: Annotated[str, typer.Option(metavar="URL", help="A Redis of yours; without it one is started.")] = "",
    json: Annotated[Path, typer.Option(metavar="FILE", help="Where the figures go.")] = command.RESULTS
    / "kv_store.json",
) -> None:
    """Measure the time to the first token of a prompt whose prefix is cold, in the engine's cache, or in Redis.

    Three engines with the same weights run side by side and get their prompts in turn: one without a store (cold, and
    the baseline for the cost of writing), one that writes, and one that reads what the other has written. Every token
    is checked.
    """
    shape = command.chosen(shape, list(SHAPES), "shape")[0]
    options = {"rounds": rounds, "tokens": tokens, "shape": shape, "dtype": dtype, "codec": codec, "threads": threads}
    machine = environment.describe({}, [], {**options, "model_cache": str(cache_folder())})
    setup = Setup(SHAPES[shape], dtype, codec, threads, tokens, rounds)

    def measure(progress: Progress) -> Measured:
        with own_redis(redis) as url:
            return carry_out(setup, url, progress)

    measured = command.run_measurement(measure, machine)
    table = Table(title=f"first token behind {tokens:,} tokens ({shape}, {dtype}, {codec}); {measured.store}")
    for column in ("where the prefix is", "median ms", "each round", "times cold"):
        table.add_column(column, justify="left" if column == "where the prefix is" else "right")
    cold = statistics.median(measured.seconds["cold"])
    for name, title in CASES.items():
        seconds = measured.seconds[name]
        middle = statistics.median(seconds)
        each = " ".join(f"{value * 1e3:,.0f}" for value in seconds)
        table.add_row(title, f"{middle * 1e3:,.0f}", each, f"{middle / cold:.2f}")
    command.console.print(table)
    for line in measured.lines():
        command.console.print(line, highlight=False)
    json.parent.mkdir(parents=True, exist_ok=True)
    document = {"environment": machine, "seconds": measured.seconds, "store": measured.numbers}
    json.write_text(json_format.dumps(document, indent=1) + "\n")
    command.console.print(f"written: {json}")


if __name__ == "__main__":
    typer.run(main)
