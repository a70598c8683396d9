"""`pointsman llm bench`: how fast a model is on this machine, and how much of the machine that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engines.cli.options import (
    ENGINE,
    MEMORY,
    Device,
    Dtype,
    Ops,
    Quantize,
    QuantizeGroup,
    Threads,
    numbers,
    option,
    refuse,
)

if TYPE_CHECKING:
    from engines.paged.base.options import EngineOptions

_LOAD, _RESULTS = "Load", "Results"
QUICK_TOKENS = 16


def bench(
    model: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder, as `pointsman llm` takes it.", show_default=False)
    ],
    batches: Annotated[str, option(_LOAD, "Numbers of concurrent sequences to measure.", metavar="LIST")] = "1,8,32",
    prompt_tokens: Annotated[int, option(_LOAD, "Tokens of each prompt.", min=1)] = 128,
    tokens: Annotated[int, option(_LOAD, "Tokens of each answer.", min=2)] = 64,
    rounds: Annotated[int, option(_LOAD, "Rounds of each batch; medians are shown.", min=1)] = 3,
    quick: Annotated[bool, option(_LOAD, "One short round, for a rough figure.", "--quick")] = False,
    device: Device = "auto",
    ops: Ops = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    quantize_group: QuantizeGroup = 64,
    threads: Threads = None,
    memory_gb: Annotated[
        float | None,
        option(
            MEMORY, "For weights, cache and workspace together.", min=0.001, show_default="what the largest batch needs"
        ),
    ] = None,
    deterministic: Annotated[bool, option(ENGINE, "Measure the cost of determinism.", "--deterministic")] = False,
    plot: Annotated[Path | None, option(_RESULTS, "Also draw the figures to this file.", metavar="FILE.png")] = None,
    report: Annotated[
        Path | None,
        option(
            _RESULTS,
            "Write the machine, the model's shape, the memory plan and every sample to this file.",
            metavar="FILE.json",
        ),
    ] = None,
) -> None:
    """Measure a language model on this machine: tokens/s, time to the first token, how long each token takes.

    Random prompts, greedy answers of one length, several sequences at a time. Decoding is bound by memory: each rate
    comes with the share of this machine's bandwidth, measured first, that reading the weights and the cache takes.
    Nothing is sent anywhere. Exit code: 0, 1 where nothing could be measured.
    """
    from engines.paged.base.options import EngineOptions

    sizes = tuple(dict.fromkeys(numbers("batches", batches, 1)))
    if not sizes:
        raise typer.BadParameter("numbers with commas between them: 1,8,32", param_hint="--batches")
    options = EngineOptions(
        device=device,
        ops=ops,
        dtype=dtype,
        memory_gb=memory_gb,
        deterministic=deterministic,
        quantize=None if quantize == "none" else quantize,
        quantize_group=quantize_group,
        threads=threads,
    )
    if quick:
        tokens, rounds = min(tokens, QUICK_TOKENS), 1
    raise typer.Exit(_run(model, options, (sizes, prompt_tokens, tokens, rounds), plot, report))


def _run(
    model: Path,
    options: EngineOptions,
    load: tuple[tuple[int, ...], int, int, int],
    plot: Path | None,
    report: Path | None,
) -> int:
    """Measure, print, write; returns the exit code. `load`: batches, tokens of a prompt and of an answer, rounds."""
    import json
    from importlib.util import find_spec

    from rich.console import Console

    if find_spec("torch") is None:
        return refuse("llm bench", 'torch is not installed here: pip install "pointsman[llm]"')

    from engines.cli.llm_bench_display import Bars, show
    from engines.core.errors import EngineError
    from engines.paged.bench.runner import BenchSpec, draw, run_bench

    if not (model / "config.json").exists():
        return refuse("llm bench", f"--model {model} is no Hugging Face folder: it has no config.json")
    if plot is not None and find_spec("matplotlib") is None:
        return refuse("llm bench", "--plot: matplotlib is not installed here: pip install matplotlib")
    for path in (plot, report):
        if path is not None and not path.absolute().parent.is_dir():
            return refuse("llm bench", f"{path}: there is no folder {path.absolute().parent}")
    console = Console(highlight=False)
    try:
        with Bars(Console(stderr=True, highlight=False)) as bars:
            findings = run_bench(BenchSpec(model, options, *load), bars.progress)
        show(findings, console)
        if report is not None:
            report.write_text(json.dumps(findings.to_json(), indent=1) + "\n")
            console.print(f"written: {report}", markup=False, soft_wrap=True)
        if plot is not None:
            draw(findings, plot)
            console.print(f"drawn: {plot}", markup=False, soft_wrap=True)
    except EngineError as error:
        return refuse("llm bench", str(error))
    except OSError as error:
        return refuse("llm bench", f"{error.filename}: {error.strerror}")
    return 0
