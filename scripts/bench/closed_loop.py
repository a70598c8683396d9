"""A closed loop of load: every connection is kept busy, and completed units are counted between two moments."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bench.processes import BenchError, raise_file_limit
from bench.window import LoadResult, Window

WARMUP_SECONDS = 0.3
MAX_WARMUP_SECONDS = 10.0

Spec = TypeVar("Spec")


class Tally:
    """The shared counts of all connections of a run."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self.units = 0.0  # requests, or tokens if the answers are streams
        self.latencies_us: list[float] = []
        self.is_over = False
        self._on_failure = on_failure

    def fail(self, message: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._on_failure(message)


async def closed_loop(
    open_one: Callable[[Tally], Awaitable[object]],
    connections: int,
    seconds: float,
    groups: dict[str, list[int]],
    is_warm: Callable[[], bool] = lambda: True,
) -> LoadResult:
    """Open the connections, each of which keeps itself busy, and count within a window of `seconds`.

    The window opens once `is_warm` holds, or after MAX_WARMUP_SECONDS.
    Raises: BenchError at the first wrong answer.
    """
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()

    def fail(message: str) -> None:
        failed.set_exception(BenchError(message))

    async def until(due: float) -> None:
        await asyncio.wait([failed], timeout=max(0.0, due - loop.time()))

    tally = Tally(fail)
    opened_at = loop.time()
    for index in range(connections):
        await open_one(tally)
        # Spread the starts over the warm-up, so that streams do not all tick in step.
        await until(opened_at + WARMUP_SECONDS * (index + 1) / connections)

    warm_by = loop.time() + MAX_WARMUP_SECONDS
    while not is_warm() and loop.time() < warm_by and not failed.done():
        await until(loop.time() + WARMUP_SECONDS / 10)

    window, units, first_latency = Window(groups), tally.units, len(tally.latencies_us)
    await until(loop.time() + seconds)
    tally.is_over = True
    if failed.done():
        failed.result()
    return window.close(tally.units - units, tally.latencies_us[first_latency:])


def answer_spec(kind: Callable[..., Spec], run: Callable[[Spec], LoadResult]) -> None:
    """The main function of a generator: reads its specification, runs it, prints the result; see `run_module`."""
    spec = kind(**json.loads(sys.argv[1]))
    raise_file_limit()
    try:
        result = run(spec)
    except (BenchError, OSError) as error:
        sys.exit(str(error))
    print(json.dumps(dataclasses.asdict(result)))
