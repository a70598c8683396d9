"""One measurement: load at one concurrency, warmed up, in windows, until they agree."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.analyze.load import NUM_STEADY, ConcurrentLoad, Window, is_steady, latency_of
from engines.analyze.models import Candidate, Measurement
from engines.analyze.server import Server

# A model whose windows are empty is slower than the windows are long; no model is waited for longer.
_MAX_SILENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """How long is measured."""

    warmup_seconds: float = 1.0
    window_seconds: float = 1.0
    max_windows: int = 10  # what has not become steady by then is reported as it is, and marked


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to measure, and the requests for it."""

    server: Server
    model: str
    requests: Sequence[bytes]
    request_batch: int
    weigh: Callable[[], int | None]  # the server's memory in bytes; None where it is not on this machine


def _wants_more(windows: Sequence[Window], pace: MeasurementSettings) -> bool:
    """Until the windows agree, or are many; where nothing has come back at all, until patience ends."""
    if any(window.errors and not window.latencies_ms for window in windows[-1:]) or is_steady(windows):
        return False
    if not any(window.latencies_ms for window in windows[-NUM_STEADY:]):
        return sum(window.seconds for window in windows) < _MAX_SILENT_SECONDS
    return len(windows) < max(pace.max_windows, NUM_STEADY)


async def measure(subject: Subject, candidate: Candidate, concurrency: int, pace: MeasurementSettings) -> Measurement:
    """Put load on the model, which serves with the candidate's settings. Raises: AnalyzeError."""
    async with ConcurrentLoad(subject.server.url, subject.requests, concurrency) as load:
        await load.window(pace.warmup_seconds)
        windows: list[Window] = []
        counters = [await subject.server.counters(subject.model)]
        begun, busy = time.perf_counter(), time.process_time()
        while _wants_more(windows, pace):
            windows.append(await load.window(pace.window_seconds))
            counters.append(await subject.server.counters(subject.model))
        client_load = (time.process_time() - busy) / (time.perf_counter() - begun)
        memory = await asyncio.to_thread(subject.weigh)
    last = windows[-NUM_STEADY:]
    latencies = [latency for window in last for latency in window.latencies_ms]
    errors = Counter(error for window in last for error in window.errors)
    if not latencies and not errors:
        seconds = sum(window.seconds for window in windows)
        errors[f"no reply came in {seconds:.1f} s: give it more time by --window-seconds"] += 1
    return Measurement(
        candidate=candidate,
        concurrency=concurrency,
        throughput=len(latencies) * subject.request_batch / sum(window.seconds for window in last),
        latency=latency_of(latencies),
        num_requests=len(latencies),
        num_errors=errors.total(),
        error=next(iter(errors), None),
        is_steady=is_steady(windows),
        client_load=client_load,
        server=counters[-1].times_since(counters[-1 - len(last)]),
        memory_bytes=memory,
    )
