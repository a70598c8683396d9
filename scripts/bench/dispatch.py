"""Python's cost to send one kernel of a decoding step to a GPU: by single calls, and by replay.

    python scripts/bench/dispatch.py            # seconds; needs no GPU
    python scripts/bench/dispatch.py --rows 8

The kernels are empty functions with the arguments of `torch.mps.compile_shader`'s, so the figure is Python's own part:
shapes, memory for results, checks and the call. The cost of a call in torch and Metal comes on top, a few microseconds
on a Mac (`pointsman doctor` measures it there).
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

# Started by its path, Python looks for modules in this folder first, where some have the names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch  # noqa: E402
import typer  # noqa: E402

from bench import command  # noqa: E402
from bench.llm_model import SHAPES, model_folder  # noqa: E402
from engines.paged.cache.memory import KVCache  # noqa: E402
from engines.paged.ops.interface import Batch  # noqa: E402
from engines.paged.ops.metal import MetalOps  # noqa: E402
from engines.paged.weights.loader import load_model  # noqa: E402

GOAL_US = 3.0
BLOCK_SIZE, NUM_BLOCKS, CONTEXT = 16, 64, 200


class EmptyLibrary:
    """Kernels that compute nothing."""

    def __init__(self, source: str) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        def kernel(*args: Any, threads: Any = None, group_size: Any = None) -> None:
            pass

        return kernel


def decoding_batch(rows: int) -> Batch:
    """A batch of sequences, each with one new token."""

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    blocks = [[1 + (row + at) % (NUM_BLOCKS - 1) for at in range(16)] for row in range(rows)]
    return Batch(
        tokens=ints([5] * rows),
        positions=ints([CONTEXT - 1] * rows),
        slots=ints([16 * row for row in range(rows)]),
        row_sequences=ints(list(range(rows))),
        query_starts=ints(list(range(rows + 1))),
        context_lens=ints([CONTEXT] * rows),
        block_tables=torch.tensor(blocks, dtype=torch.int32),
        query_lens_list=[1] * rows,
        context_lens_list=[CONTEXT] * rows,
        block_tables_list=blocks,
        num_decodes=rows,
    )


@torch.inference_mode()
def measure(rows: int, rounds: int) -> tuple[int, list[float], list[float]]:
    """Dispatches of a step, and microseconds for each of them by round: called, and replayed."""
    ops = MetalOps(EmptyLibrary, "cpu")
    shape = replace(SHAPES["tiny"], layers=16)
    loaded = load_model(model_folder(shape, "float32"), ops, dtype="float32")
    cache = KVCache(loaded.config, NUM_BLOCKS, BLOCK_SIZE, ops.device)
    batch = decoding_batch(rows)

    def compute() -> torch.Tensor:
        batch.scratch.clear()
        return loaded.decoder.next_logits(batch, cache.keys, cache.values)

    def replayed() -> torch.Tensor:
        return ops.replay("step", batch, compute)

    replayed()
    before = ops.kernels.dispatches.total()
    compute()
    dispatches = ops.kernels.dispatches.total() - before
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for figures, step in zip(found, (compute, replayed), strict=True):
            started = time.perf_counter()
            for _ in range(50):
                step()
            figures.append((time.perf_counter() - started) / 50 / dispatches * 1e6)
    return dispatches, found[0], found[1]


def main(
    rows: Annotated[int, typer.Option(min=1, max=32, help="Sequences that decode at a time.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of each; medians are shown.")] = 9,
) -> None:
    """Measure Python's part of a dispatch. Exits with 1 if replaying misses its goal."""
    torch.set_num_threads(1)
    dispatches, called, replayed = measure(rows, rounds)
    command.console.print(
        f"{dispatches} dispatches a step of {rows} rows; called {median(called):.1f} us each, "
        f"replayed {median(replayed):.2f} us each (goal {GOAL_US:g})"
    )
    raise typer.Exit(median(replayed) > GOAL_US)


if __name__ == "__main__":
    typer.run(main)
