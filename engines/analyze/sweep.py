"""A whole analysis: candidates in a search's order, each loaded and measured, and the model put back as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engines.analyze import config_override, inputs
from engines.analyze.load import request_bytes
from engines.analyze.local_host import server_pid
from engines.analyze.measurement import MeasurementSettings, Subject, measure
from engines.analyze.models import AnalyzeError, Budget, Candidate, Measurement, Space
from engines.analyze.search import Search, coordinate, grid, score, wants_more
from engines.analyze.server import Server

# The settings that are swept where the command line names none.
_MAX_BATCH_SIZES = (1, 4, 16, 64)
_INSTANCES = (1, 2, 4)
_QUEUE_DELAYS_US: tuple[int | None, ...] = (None, 0, 500, 2000)


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What to analyze, and how. An empty tuple stands for values that suit the model."""

    model: str
    budget: Budget = field(default_factory=Budget)
    pace: MeasurementSettings = field(default_factory=MeasurementSettings)
    search: str = "quick"  # quick | grid
    instances: tuple[int, ...] = ()
    max_batch_sizes: tuple[int, ...] = ()
    queue_delays_us: tuple[int | None, ...] = ()
    preferred: tuple[tuple[int, ...], ...] = ((),)
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    request_batch: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_file: Path | None = None


@dataclass(slots=True)
class Sweep:
    """The state of an analysis; `config` is the model's own configuration."""

    request: SweepRequest
    server_name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    start: Candidate | None = None
    measurements: list[Measurement] = field(default_factory=list)
    refused: dict[Candidate, str] = field(default_factory=dict)  # candidates that the server would not load: why
    notes: list[str] = field(default_factory=list)
    num_planned: int = 0  # candidates: all of a grid, and about as many as a quick search tries
    has_changed_model: bool = False  # the server has loaded another configuration than its own
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Callbacks during a sweep."""

    trying: Callable[[Candidate, int], None]  # the candidate and the concurrency that come next
    measured: Callable[[Measurement], None]
    refused: Callable[[Candidate, str], None]


async def run(
    server: Server, study: Sweep, progress: SweepProgress, weigh: Callable[[int], int | None], pid: int | None = None
) -> None:
    """Run a sweep into `study`. The server's model is restored at the end, also when cancelled.

    `weigh` returns the bytes of a process with its descendants; `pid` is the server's, by default found by its port.
    Raises: AnalyzeError.
    """
    request = study.request
    study.server_name = await server.name()
    was_loaded = await server.is_loaded(request.model)
    if not was_loaded:
        await server.load(request.model)
    try:
        study.config = config = await server.config(request.model)
        config_override.check_kind(config)
        study.start = config_override.candidate_of(config)
        pid = pid or await asyncio.to_thread(server_pid, server.url)
        if pid is None and request.budget.memory_bytes is not None:
            raise AnalyzeError("a memory budget needs the server on this machine: run analyze there, or leave it out")
        weigh_server = partial(weigh, pid) if pid is not None else lambda: None
        subject = Subject(server, request.model, _requests(server, study), request.request_batch, weigh_server)
        searching, space = _search(study)
        await _try_all(searching, space, subject, study, progress)
        study.is_complete = True
    finally:
        await _uninterrupted(_restore(server, study, was_loaded))


def _requests(server: Server, study: Sweep) -> list[bytes]:
    request = study.request
    if request.input_file is not None:
        bodies = inputs.read(request.input_file)
    else:
        for name in inputs.open_axes(study.config, request.shapes):
            study.notes.append(
                f"input {name} has an axis of any length, taken as 1: give the real one, --shape {name}:N"
            )
        bodies = inputs.generate(study.config, request.request_batch, request.shapes)
    path = f"/v2/models/{quote(request.model, safe='')}/infer"
    return [request_bytes(server.url, path, body) for body in bodies]


def _search(study: Sweep) -> tuple[Search, Space]:
    request, start = study.request, study.start
    assert start is not None
    if not config_override.has_settings(study.config):
        study.notes.append(
            "an ensemble has no settings of its own: only the load is swept; analyze its steps, each alone"
        )
        study.num_planned = 1
        return single(start), Space((1,), (0,), concurrencies=request.concurrencies)
    space = space_for(request, start)
    if request.search == "grid":
        study.num_planned = sum(1 for _ in grid(space))
        return grid(space), space
    axes = (space.instances, space.max_batch_sizes, space.queue_delays_us, space.preferred)
    study.num_planned = 1 + sum(len(axis) - 1 for axis in axes)
    return coordinate(space, start), space


def single(candidate: Candidate) -> Search:
    """The search that tries one candidate."""
    yield candidate


def space_for(request: SweepRequest, start: Candidate) -> Space:
    """The values to sweep: the requested ones, else the default ones that suit the model, with those it has now.
    Raises: AnalyzeError for values that the model cannot have."""
    batches = start.max_batch_size > 0
    if not batches and (any(request.max_batch_sizes) or request.request_batch > 1):
        why = "max_batch_size is 0 in its configuration: it takes no batches"
        raise AnalyzeError(f"{request.model} cannot be swept over batch sizes: {why}")
    sizes = request.max_batch_sizes or ((*_MAX_BATCH_SIZES, start.max_batch_size) if batches else (0,))
    sizes = tuple(sorted({size for size in sizes if not batches or size >= request.request_batch}))
    if not sizes:
        raise AnalyzeError(f"no max_batch_size takes requests of {request.request_batch}: raise --max-batch-size")
    delays = request.queue_delays_us or (*_QUEUE_DELAYS_US, start.queue_delay_us)
    instances = request.instances or (*_INSTANCES, start.instances)
    return Space(
        instances=tuple(sorted(set(instances))),
        max_batch_sizes=sizes,
        queue_delays_us=tuple(sorted(set(delays), key=lambda delay: -1 if delay is None else delay))
        if batches
        else (None,),
        preferred=tuple(dict.fromkeys(((), *request.preferred))) if batches else ((),),
        concurrencies=tuple(sorted(set(request.concurrencies))),
    )


async def _try_all(searching: Search, space: Space, subject: Subject, study: Sweep, progress: SweepProgress) -> None:
    try:
        candidate = next(searching)
        while True:
            candidate = searching.send(await _try(candidate, space, subject, study, progress))
    except StopIteration:
        return


async def _try(candidate: Candidate, space: Space, subject: Subject, study: Sweep, progress: SweepProgress) -> float:
    """Measure a candidate at rising concurrencies; its score."""
    request = study.request
    progress.trying(candidate, space.concurrencies[0])
    if config_override.has_settings(study.config):
        study.has_changed_model = True
        try:
            await subject.server.load(request.model, config_override.with_candidate(study.config, candidate))
        except AnalyzeError as error:
            study.refused[candidate] = str(error)
            progress.refused(candidate, str(error))
            return float("-inf")
    measured: list[Measurement] = []
    for concurrency in space.concurrencies:
        if not wants_more(measured, request.budget):
            break
        progress.trying(candidate, concurrency)
        measured.append(await measure(subject, candidate, concurrency, request.pace))
        study.measurements.append(measured[-1])
        progress.measured(measured[-1])
    return score(measured, request.budget)


async def _restore(server: Server, study: Sweep, was_loaded: bool) -> None:
    """Load the model from its repository, or with the override that it had before."""
    model = study.request.model
    try:
        if not was_loaded:
            await server.unload(model)
        elif study.has_changed_model:
            await server.load(model)
            if await server.config(model) != study.config:
                await server.load(model, study.config)
    except AnalyzeError as error:
        raise AnalyzeError(f"{model} could not be put back as it was, load it again by hand: {error}") from error


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Finish some work, also where this task is cancelled meanwhile."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.result()
        raise
