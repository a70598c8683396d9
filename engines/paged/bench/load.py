"""The load of a measurement: equal requests, submitted together, and the times of their tokens."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from engines.core.errors import EngineError, ErrorCode
from engines.paged.base.types import GenerateRequest, Output, SamplingParams
from engines.paged.engine import PagedEngine


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """One request's times, in seconds of one clock."""

    submitted: float
    token_times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One round at one batch size."""

    batch: int
    prompt_tokens: int
    requests: tuple[RequestTimings, ...]


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """Size of each request: random prompt tokens, and tokens to generate."""

    prompt_tokens: int
    output_tokens: int
    vocabulary: int

    def prompts(self, batch: int, seed: int) -> list[tuple[int, ...]]:
        """Prompts without common prefixes, also between rounds: the prefix cache has no hits."""
        dice = random.Random(f"{seed}/{batch}")
        return [tuple(dice.randrange(self.vocabulary) for _ in range(self.prompt_tokens)) for _ in range(batch)]


def run_round(engine: PagedEngine, load: BenchLoad, batch: int, seed: int) -> Round:
    """Submit a batch and wait for its end. Raises: EngineError where a request fails, or ends too early."""
    outputs: SimpleQueue[tuple[int, float, Output]] = SimpleQueue()

    def take(place: int, output: Output) -> None:
        outputs.put((place, time.perf_counter(), output))

    times: list[list[float]] = [[] for _ in range(batch)]
    params = SamplingParams(max_tokens=load.output_tokens, temperature=0.0, ignore_eos=True)
    submitted = []
    for place, prompt in enumerate(load.prompts(batch, seed)):
        request = GenerateRequest(f"bench-{seed}-{batch}-{place}", prompt, params)
        submitted.append(time.perf_counter())
        engine.submit(request, partial(take, place))
    num_active = batch
    while num_active:
        place, now, output = outputs.get()
        if output.error:
            raise EngineError(ErrorCode.INTERNAL, f"the engine failed in the middle of a round: {output.error}")
        times[place].extend([now] * len(output.token_ids))
        num_active -= output.is_final
    for each in times:
        if len(each) != load.output_tokens:
            short = f"{len(each)} tokens came where {load.output_tokens} were requested"
            raise EngineError(ErrorCode.INTERNAL, f"{short}: the figures would say nothing")
    timings = (RequestTimings(at, tuple(each)) for at, each in zip(submitted, times, strict=True))
    return Round(batch, load.prompt_tokens, tuple(timings))


def gaps(requests: Sequence[RequestTimings], begin: float = -math.inf, end: float = math.inf) -> list[float]:
    """Seconds between one token and the next, both between `begin` and `end`."""
    return [
        later - earlier
        for timings in requests
        for earlier, later in zip(timings.token_times, timings.token_times[1:], strict=False)
        if begin <= earlier and later <= end
    ]
