"""`pointsman llm bench`: how fast a model is on this machine, and how much of the machine that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engines.cli.options import ENGINE, Device, Dtype, Ops, Threads

if TYPE_CHECKING:
    from engines.paged.base.options import EngineOptions

_LOAD, _RESULTS = "Load", "Results"
QUICK_TOKENS = 16


def bench(
    model: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder, as `pointsman llm` takes it.", show_default=False)
    ],
    batches: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of concurrent sequences to measure.", rich_help_panel=_LOAD)
    ] = "1,8,32",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.", rich_help_panel=_LOAD)] = 128,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.", rich_help_panel=_LOAD)] = 64,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of each batch; medians are shown.", rich_help_panel=_LOAD)
    ] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="One short round, for a rough figure.", rich_help_panel=_LOAD)
    ] = False,
    device: Device = "auto",
    ops: Ops = "auto",
    dtype: Dtype = "auto",
    quantize: Annotated[
        Literal["none", "int8", "int4"],
        typer.Option(help="Round the weights when they are loaded.", rich_help_panel=ENGINE),
    ] = "none",
    quantize_group: Annotated[
        int, typer.Option(min=1, help="Weights that share a scale.", rich_help_panel=ENGINE)
    ] = 64,
    threads: Threads = None,
    memory_gb: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="For weights, cache and workspace together.",
            show_default="what the largest batch needs",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Measure what determinism costs.", rich_help_panel=ENGINE)
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Also draw the figures to this file.", rich_help_panel=_RESULTS),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write the machine, the model's shape, the memory plan and every sample to this file.",
            rich_help_panel=_RESULTS,
        ),
    ] = None,
) -> None:
    """Measure a language model on this machine: tokens/s, time to the first token, how long each token takes.

    Random prompts, greedy answers of one length, several sequences at a time. Decoding is bound by memory: each rate
    comes with the share of this machine's bandwidth, measured first, that reading the weights and the cache takes.
    Nothing is sent anywhere. Exit code: 0, 1 where nothing could be measured.
    """
    from engines.paged.base.options import EngineOptions

    sizes = _numbers(batches)
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


def _numbers(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError as error:
        raise typer.BadParameter("numbers with commas between them: 1,8,32", param_hint="--batches") from error
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter("each must be at least 1", param_hint="--batches")
    return sizes


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
        return _refuse('torch is not installed here: pip install "pointsman[llm]"')

    from engines.cli.llm_bench_display import Bars, show
    from engines.core.errors import EngineError
    from engines.paged.bench import plot as bench_plot
    from engines.paged.bench.runner import BenchSpec, run_bench

    if not (model / "config.json").exists():
        return _refuse(f"--model {model} is no Hugging Face folder: it has no config.json")
    if plot is not None and not bench_plot.can_draw():
        return _refuse("--plot: matplotlib is not installed here: pip install matplotlib")
    for path in (plot, report):
        if path is not None and not path.absolute().parent.is_dir():
            return _refuse(f"{path}: there is no folder {path.absolute().parent}")
    console = Console(highlight=False)
    try:
        with Bars(Console(stderr=True, highlight=False)) as bars:
            findings = run_bench(BenchSpec(model, options, *load), bars.progress)
        show(findings, console)
        if report is not None:
            report.write_text(json.dumps(findings.to_json(), indent=1) + "\n")
            console.print(f"written: {report}", markup=False, soft_wrap=True)
        if plot is not None:
            bench_plot.draw(findings, plot)
            console.print(f"drawn: {plot}", markup=False, soft_wrap=True)
    except EngineError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    return 0


def _refuse(problem: str) -> int:
    typer.secho(f"pointsman llm bench: {problem}", fg=typer.colors.RED, err=True)
    return 1
