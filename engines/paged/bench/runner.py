"""A whole measurement: the memory's bandwidth, a warm-up, then rounds of each batch size in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engines.core.errors import invalid
from engines.paged.base.options import EngineOptions
from engines.paged.bench.figures import Figures, figures, percentile
from engines.paged.bench.load import BenchLoad, Round, gaps, run_round
from engines.paged.bench.machine import Bandwidth, describe_machine, measure_bandwidth
from engines.paged.builder import assemble
from engines.paged.cache.memory import available_memory
from engines.paged.device import DeviceThread, choose_device, use_threads
from engines.paged.engine import PagedEngine

# stage, done, total
Progress = Callable[[str, int, int], None]

WARM_UP_SEED = -1
WARM_UP_TOKENS = 4
# Changes with the form of the report.
REPORT_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """What to measure."""

    model: Path
    options: EngineOptions
    batches: Sequence[int] = (1, 8, 32)
    prompt_tokens: int = 128
    output_tokens: int = 64
    rounds: int = 3

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The figures, and what they were measured on."""

    spec: BenchSpec
    machine: dict[str, Any]
    engine: dict[str, Any]  # PagedEngine.describe
    bandwidth: Bandwidth
    rounds: Sequence[Round]
    points: Sequence[Figures]  # one per batch size

    def to_json(self) -> dict[str, Any]:
        """All samples of all rounds, in seconds; token times count from their request's submission."""
        options = {name: value for name, value in asdict(self.spec.options).items() if name != "adapters"}
        return {
            "report": "pointsman llm bench",
            "format": REPORT_FORMAT,
            "machine": self.machine,
            "model": self.spec.model.name,
            "engine": self.engine,
            "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
            "prompt_tokens": self.spec.prompt_tokens,
            "output_tokens": self.spec.output_tokens,
            "bandwidth": asdict(self.bandwidth) | {"best": self.bandwidth.best},
            "points": [asdict(point) for point in self.points],
            "rounds": [{"batch": measured.batch, "requests": _token_times(measured)} for measured in self.rounds],
        }


def run_bench(spec: BenchSpec, progress: Progress) -> BenchResult:
    """Measure the machine, load the model, measure it, and end the engine. Raises: EngineError."""
    _check(spec)
    device = choose_device(spec.options.device)
    thread = DeviceThread("paged-engine")  # a GPU is used on one thread
    try:
        bandwidth, machine = thread.begin(lambda: _measure_machine(spec.options, device, progress)).result()
        engine = PagedEngine(thread.begin(lambda: assemble(spec.model, sized_options(spec), progress)).result(), thread)
    except BaseException:
        thread.end()
        raise
    try:
        if spec.context_tokens > engine.config.max_positions:
            raise invalid(
                f"{spec.prompt_tokens} tokens of prompt and {spec.output_tokens} of answer are more than the "
                f"{engine.config.max_positions} that this model knows: ask for fewer"
            )
        rounds = _measure(engine, spec, progress)
    finally:
        engine.stop()
    quantize, group = spec.options.quantize, spec.options.quantize_group
    points = []
    for batch in spec.batches:
        own = [measured for measured in rounds if measured.batch == batch]
        points.append(figures(own, engine.config, quantize, group, bandwidth.best))
    description = engine.describe() | {"shape": asdict(engine.config) | {"windows": sorted(set(engine.config.windows))}}
    return BenchResult(spec, machine, _plain(description), bandwidth, rounds, points)


def sized_options(spec: BenchSpec) -> EngineOptions:
    """The options, with seats and cache for the largest batch unless they set them."""
    options = spec.options
    most = max(spec.batches)
    results = replace(options, max_sequences=max(options.max_sequences, most))
    if options.memory_gb is None and options.num_blocks is None:
        # One block more per sequence: it is allocated ahead of the token that needs it.
        blocks = most * (-(-spec.context_tokens // options.block_size) + 1)
        results = replace(results, num_blocks=blocks)
    if options.max_context is None:
        results = replace(results, max_context=spec.context_tokens)
    return results


def _check(spec: BenchSpec) -> None:
    """Raises: EngineError where nothing could be measured."""
    if not spec.batches or min(spec.batches) < 1:
        raise invalid("batches: at least one number of sequences is needed, 1 or more: 1,8,32")
    if spec.prompt_tokens < 1:
        raise invalid(f"prompt_tokens: {spec.prompt_tokens} is no length of a prompt; 1 is the least")
    if spec.output_tokens < 2:
        raise invalid(f"tokens: {spec.output_tokens} leaves no time between two tokens; 2 is the least")
    if spec.rounds < 1:
        raise invalid("rounds: at least one is needed")


def _measure_machine(
    options: EngineOptions, device: torch.device, progress: Progress
) -> tuple[Bandwidth, dict[str, Any]]:
    """Before a model is loaded, with the engine's number of threads."""
    use_threads(options.threads)
    free = available_memory(device, 0)
    bandwidth = measure_bandwidth(device, free, lambda done, total: progress("memory bandwidth", done, total))
    return bandwidth, describe_machine(device)


def _measure(engine: PagedEngine, spec: BenchSpec, progress: Progress) -> list[Round]:
    engine.start()
    vocabulary = engine.config.vocab_size
    warm = BenchLoad(spec.prompt_tokens, min(WARM_UP_TOKENS, spec.output_tokens), vocabulary)
    for done, batch in enumerate(spec.batches):
        progress("warming up", done, len(spec.batches))
        run_round(engine, warm, batch, WARM_UP_SEED)
    load = BenchLoad(spec.prompt_tokens, spec.output_tokens, vocabulary)
    results: list[Round] = []
    total = spec.rounds * len(spec.batches)
    for number in range(spec.rounds):
        for batch in spec.batches:
            progress(f"{batch} at a time, round {number + 1} of {spec.rounds}", len(results), total)
            results.append(run_round(engine, load, batch, number))
    progress("measured", total, total)
    return results


def _token_times(measured: Round) -> list[list[float]]:
    return [[round(at - timings.submitted, 6) for at in timings.token_times] for timings in measured.requests]


def _plain(value: Any) -> Any:
    """In JSON's types."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


DOT, BAR = "#333333", "#c8442c"


def draw(findings: BenchResult, path: Path) -> None:
    """Tokens per second with every round as a dot, the distribution of gaps between tokens, and the bandwidth's share.

    Raises: ImportError, OSError.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(12, 3.8), layout="constrained")
    FigureCanvasAgg(sheet)  # draws into a file, without a display
    rates, spread, share = sheet.subplots(1, 3)
    points = findings.points
    places, names = range(len(points)), [str(point.batch) for point in points]
    rates.bar(places, [point.tokens_per_second for point in points], color=BAR, alpha=0.85)
    for place, point in zip(places, points, strict=True):
        ends = [point.lowest_tokens_per_second, point.highest_tokens_per_second]
        rates.scatter([place] * 2, ends, color=DOT, s=9, zorder=3)
    rates.set_title("tokens/s, decoding (dots: least and most of the rounds)", fontsize=9)
    for point in points:
        own = sorted(gap * 1e3 for each in findings.rounds if each.batch == point.batch for gap in gaps(each.requests))
        spread.plot(own, [(at + 1) / len(own) for at in range(len(own))], label=f"{point.batch} at a time")
        spread.set_xlim(0, max(spread.get_xlim()[1], percentile(own, 99)))
    spread.set_title("ms from one token to the next: share of tokens below", fontsize=9)
    spread.legend(fontsize=8)
    share.bar(places, [point.bandwidth_share * 100 for point in points], color=BAR, alpha=0.85)
    share.set_title("% of the memory's bandwidth", fontsize=9)
    for axis in (rates, share):
        axis.set_xticks(list(places), names)
        axis.set_xlabel("sequences at a time", fontsize=8)
    for axis in (rates, spread, share):
        axis.spines[["top", "right"]].set_visible(False)
    machine = findings.machine
    chip = machine["gpu"] or machine["chip"]
    title = f"{findings.spec.model.name} ({findings.engine['dtype']}) on {chip}, torch {machine['torch']}"
    sheet.suptitle(f"{title}, {machine['time']}", fontsize=9)
    sheet.savefig(path, dpi=130)
