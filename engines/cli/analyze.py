"""`pointsman analyze`: sweep a model's settings under load, and recommend the best within a budget."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from engines.cli.options import SERVER, numbers, option, refuse

if TYPE_CHECKING:
    from rich.console import Console

    from engines.analyze.search import Recommendation
    from engines.analyze.sweep import Sweep, SweepRequest

_BUDGET, _SETTINGS, _LOAD = "Budget", "Settings to try", "Load"

_DEFAULT_URL = "http://127.0.0.1:8000"
_NUMBERS = "LIST"
_INTERRUPTED = 130  # the shell's status of a command ended by Ctrl-C


def _list(help_text: str) -> Any:
    return option(_SETTINGS, help_text, metavar=_NUMBERS, show_default=False)


def analyze(
    model: Annotated[str, typer.Option(help="The model's name.", show_default=False)],
    url: Annotated[
        str, option(SERVER, "A Triton-compatible server's REST port, in explicit model control.", metavar="URL")
    ] = _DEFAULT_URL,
    model_repository: Annotated[
        str | None, option(SERVER, "Start an engine host on this repository, instead of --url.", metavar="DIR")
    ] = None,
    latency_budget_ms: Annotated[
        float | None, option(_BUDGET, "Highest p99 latency of the recommended configuration.", min=0.001)
    ] = None,
    memory_budget_mb: Annotated[
        float | None, option(_BUDGET, "Most memory of the server with its processes (MiB); it must run here.", min=1)
    ] = None,
    search: Annotated[
        Literal["quick", "grid"],
        option(_SETTINGS, "quick: optimize one setting after another; grid: every combination."),
    ] = "quick",
    instances: Annotated[str, _list("Instance counts to try: 1,2,4.")] = "",
    max_batch_size: Annotated[str, _list("Values of max_batch_size to try: 1,8,32.")] = "",
    queue_delay_us: Annotated[
        str, _list("Delays of the dynamic batcher to try, in microseconds, none for no batcher: none,0,500.")
    ] = "",
    preferred: Annotated[str, _list("Sets of preferred batch sizes to try: 4,8;16.")] = "",
    concurrency: Annotated[str, option(_LOAD, "Concurrent requests.", metavar=_NUMBERS)] = "1,2,4,8,16,32,64",
    request_batch: Annotated[int, option(_LOAD, "Inferences in each request.", min=1)] = 1,
    shape: Annotated[
        list[str] | None,
        option(
            _LOAD, "Dims of an input with an axis of any length: tokens:128. May be repeated.", metavar="INPUT:DIMS"
        ),
    ] = None,
    input_file: Annotated[
        Path | None,
        option(
            _LOAD, "Requests to send: a V2 inference request or a list of them, instead of random ones.", metavar="JSON"
        ),
    ] = None,
    warmup_seconds: Annotated[float, option(_LOAD, "Seconds of load before the measurement.", min=0.0)] = 1.0,
    window_seconds: Annotated[
        float, option(_LOAD, "Seconds of a window; three that agree are a measurement.", min=0.01)
    ] = 1.0,
    max_windows: Annotated[int, option(_LOAD, "Windows after which a measurement ends without agreement.", min=3)] = 10,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the results.", show_default="analyze-MODEL")
    ] = None,
) -> int:
    """Try settings of a model under load and recommend the best: batch size, instances, queue delay.

    The server's model is restored at the end, also on Ctrl-C. The output folder gets config.pbtxt, results.json,
    results.csv and, where matplotlib is installed, plot.png. Exit code: 0, 1 where nothing could be
    measured, 3 where nothing was within the budget.
    """
    from engines.analyze.load import check_url
    from engines.analyze.measurement import MeasurementSettings
    from engines.analyze.models import AnalyzeError, Budget
    from engines.analyze.sweep import SweepRequest

    delays = numbers("queue-delay-us", queue_delay_us.replace("none", "-1"), -1)
    request = SweepRequest(
        model=model,
        budget=Budget(latency_budget_ms, None if memory_budget_mb is None else int(memory_budget_mb * 2**20)),
        pace=MeasurementSettings(warmup_seconds, window_seconds, max_windows),
        search=search,
        instances=numbers("instances", instances, 1),
        max_batch_sizes=numbers("max-batch-size", max_batch_size, 0),
        queue_delays_us=tuple(delay if delay >= 0 else None for delay in delays),
        preferred=tuple(numbers("preferred", one, 1) for one in preferred.split(";") if one.strip()) or ((),),
        concurrencies=numbers("concurrency", concurrency, 1),
        request_batch=request_batch,
        shapes=dict(_shape(text) for text in shape or ()),
        input_file=input_file,
    )
    folder = output or Path(f"analyze-{model.replace('/', '_')}")
    try:
        if model_repository is None:
            check_url(url)
        folder.mkdir(parents=True, exist_ok=True)
        return _run(request, url, model_repository, folder)
    except AnalyzeError as error:
        return refuse("analyze", error)
    except OSError as error:
        return refuse("analyze", f"{error.filename or folder}: {error.strerror}")


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, dims = text.rpartition(":")
    if not colon or not name:
        raise typer.BadParameter(f"--shape {text!r}: write INPUT:DIMS, as tokens:128 or image:3,224,224")
    return name, numbers("shape", dims, 0)


# Running


def _run(request: SweepRequest, url: str, repository: str | None, folder: Path) -> int:
    import asyncio

    from rich.console import Console

    from engines.analyze.models import AnalyzeError
    from engines.analyze.report import PIPE_COLUMNS
    from engines.analyze.sweep import Sweep
    from gateway.net.server import loop_factory

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    study = Sweep(request)
    is_interrupted = False
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            runner.run(_study(study, url, repository, folder, console))
        except AnalyzeError as error:
            if not study.measurements:
                raise
            refuse("analyze", error)
        except (asyncio.CancelledError, KeyboardInterrupt):
            is_interrupted = True
            console.print("interrupted: the model is as it was; what was measured follows", style="yellow")
    status = _report(study, folder, console)
    if is_interrupted:
        return _INTERRUPTED
    return status if study.is_complete else 1


async def _study(study: Sweep, url: str, repository: str | None, folder: Path, console: Console) -> None:
    import asyncio
    import signal

    from engines.analyze import sweep as studying
    from engines.analyze.local_host import hosting
    from engines.analyze.report import SweepDisplay
    from engines.analyze.server import Server

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with AsyncExitStack() as stack:
        pid = None
        if repository is not None:
            hosted = await stack.enter_async_context(hosting(repository, folder))
            url, pid = hosted.url, hosted.pid
        server = Server(url)
        stack.push_async_callback(server.close)
        with SweepDisplay(study, console) as progress:
            await studying.run(server, study, progress, _weigh, pid)


def _weigh(pid: int) -> int | None:
    """Bytes that a process takes with its descendants; None where it is gone."""
    from engines.core.processes import memory_of, processes, tree

    members = tree(pid, processes())
    return memory_of(members) if members else None


def _report(study: Sweep, folder: Path, console: Console) -> int:
    """Print the table and write the files; the exit status."""
    from importlib.util import find_spec

    from engines.analyze import config_override, report
    from engines.analyze.search import recommend

    for note in study.notes:
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    if not study.measurements:
        console.print("nothing was measured", style="red")
        return 1
    chosen = recommend(study.measurements, study.request.budget)
    console.print(report.result_table(study, chosen))
    written = {"results.json": report.to_json(study, chosen), "results.csv": report.to_csv(study)}
    if chosen is not None and config_override.has_settings(study.config):
        written["config.pbtxt"] = config_override.config_pbtxt(
            config_override.with_candidate(study.config, chosen.measured.candidate)
        )
    for name, text in written.items():
        (folder / name).write_text(text)
    names = list(written)
    if chosen is None:
        pass  # a picture of errors would be empty
    elif find_spec("matplotlib") is not None:
        report.draw(study, chosen, folder / "plot.png")
        names.append("plot.png")
    else:
        console.print("no plot: matplotlib is not installed (pip install matplotlib)")
    console.print(f"in {folder}: {', '.join(names)}", markup=False, soft_wrap=True)
    return _recommend(chosen, study, folder, console)


def _recommend(chosen: Recommendation | None, study: Sweep, folder: Path, console: Console) -> int:
    from engines.analyze import config_override

    if chosen is None:
        console.print("every measurement had errors: see the table; is --input-file or --shape needed?", style="red")
        return 1
    best = chosen.measured
    figures = f"{best.throughput:,.1f} inferences/s at {best.latency.p99:.2f} ms p99, {best.concurrency} at a time"
    console.print(f"recommended: {best.candidate}: {figures}: {chosen.why}", style="bold", markup=False, soft_wrap=True)
    if not chosen.is_within_budget:
        console.print("raise the budget, try smaller --concurrency, or make the model faster", style="yellow")
        return 3
    if config_override.has_settings(study.config):
        console.print(f"to take it: copy {folder / 'config.pbtxt'} over the model's own and load the model again")
    return 0
