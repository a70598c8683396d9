"""A scheduler without a model: the cache holds, for each slot, the hash of the prefix that was computed there.

The simulation checks what a model's attention would read: each row's table must lead to exactly the tokens of its own
sequence. The next token is a hash of the prefix, so any mix-up changes the text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from engines.paged.base.types import FinishReason, GenerateRequest, SamplingParams
from engines.paged.cache.block_pool import BlockPool
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import SchedulerOutput, Sequence, SequenceStatus
from tests.engines.paged.scheduling.invariants import check_scheduler
from tests.engines.paged.scheduling.outside import Outside, digest

VOCABULARY = 50


def text_of(prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    """The reply to a request that runs alone."""
    state, tokens = 0, list(prompt)
    for token in prompt:
        state = digest(state, token)
    for _ in range(num_tokens):
        tokens.append(state % VOCABULARY)
        state = digest(state, tokens[-1])
    return tokens[len(prompt) :]


@dataclass
class Simulation:
    """`ahead`: a step is planned before the tokens of the previous one are known, as on a GPU."""

    scheduler: Scheduler
    ahead: bool = False
    guess: float = 0.0  # how often the drafts for a sequence are right
    stores: bool = False  # blocks are stored outside, too
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        size = self.scheduler.block_manager.block_size
        self.cache = [[-1] * size for _ in range(self.scheduler.pool.num_blocks)]
        self.in_flight: tuple[SchedulerOutput, list[list[int]]] | None = None
        self.last: dict[int, int] = {}  # by slot, as on the device
        self.num_rows = 0
        self.chunk_tokens = (
            self.scheduler._chunk_tokens or 0
        )  # with fixed chunk boundaries, one chunk runs beside the other rows
        self.arrivals = 0
        self.outside = Outside(self.scheduler, self.cache, self.dice) if self.stores else None

    def submit(self, prompt: tuple[int, ...], max_tokens: int, **fields: object) -> Sequence:
        self.arrivals += 1
        params = SamplingParams(max_tokens=max_tokens)
        request = GenerateRequest(str(self.arrivals), prompt, params, **fields)  # type: ignore[arg-type]
        sequence = Sequence(request, 0, self.arrivals, self.scheduler.block_manager.block_size)
        sequence.needs_host = bool(self.guess)
        self.scheduler.add(sequence)
        return sequence

    def step(self, prefill_rows: int | None = None) -> SchedulerOutput | None:
        """Plan and compute one step; read it, or the previous one."""
        if self.outside is not None:
            self.outside.copy_out()
            self.outside.arrive(lambda: check_scheduler(self.scheduler))
        plan = self.scheduler.plan(prefill_rows)
        check_scheduler(self.scheduler)
        computed = (plan, self.compute(plan)) if plan else None
        if self.outside is not None:
            self.outside.copy_out()
        if self.ahead:
            computed, self.in_flight = self.in_flight, computed
        if computed:
            self.read(*computed)
            check_scheduler(self.scheduler)
        return plan

    def compute(self, plan: SchedulerOutput) -> list[list[int]]:
        size = self.scheduler.block_manager.block_size
        for source, target in plan.copies:
            self.cache[target] = list(self.cache[source])
        assert plan.num_rows <= self.scheduler.max_batch_tokens + self.chunk_tokens
        written: list[tuple[int, int]] = []
        inputs = []
        for chunk in plan.chunks:
            known = [*chunk.sequence.tokens, *chunk.drafts]
            tokens = [
                known[p] if p < len(known) else self.last[chunk.sequence.slot] for p in range(chunk.start, chunk.end)
            ]
            inputs.append(tokens)
        results = []
        for chunk, tokens in zip(plan.chunks, inputs, strict=True):
            blocks = chunk.sequence.blocks
            yielded = []
            for position, token in zip(range(chunk.start, chunk.end), tokens, strict=True):
                before = self.cache[blocks[(position - 1) // size]][(position - 1) % size] if position else 0
                state = 0  # what attention would read: the whole prefix must be in the table
                if position:
                    for p, known in enumerate([*chunk.sequence.tokens, *chunk.drafts][:position]):
                        state = digest(state, known)
                        assert self.cache[blocks[p // size]][p % size] == state, f"{chunk}: wrong content at {p}"
                    if position <= len(chunk.sequence.tokens) + len(chunk.drafts):
                        assert state == before
                block, offset = blocks[position // size], position % size
                assert self.scheduler.pool.references(block) == 1, "a shared block is written"
                assert (block, offset) not in written, "two rows write one slot"
                written.append((block, offset))
                self.cache[block][offset] = digest(before, token)
                yielded.append(self.cache[block][offset] % VOCABULARY)
            self.num_rows += chunk.count
            yielded = yielded[len(yielded) - chunk.num_samples :]
            for right, guess in enumerate(chunk.drafts):
                if yielded[right] != guess:
                    del yielded[right + 1 :]
                    break
            if yielded:
                self.last[chunk.sequence.slot] = yielded[-1]
            results.append(yielded)
        return results

    def read(self, plan: SchedulerOutput, results: list[list[int]]) -> None:
        for chunk, tokens in zip(plan.chunks, results, strict=True):
            sequence = chunk.sequence
            self.scheduler.advance(chunk, tokens)
            if sequence.status is SequenceStatus.FINISHED:
                continue
            del sequence.tokens[sequence.max_tokens :]
            if len(sequence.tokens) >= sequence.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)
            elif self.guess and sequence.status is SequenceStatus.RUNNING:
                right = text_of(tuple(sequence.tokens), 3)
                sequence.drafts = [token if self.dice.random() < self.guess else token + 1 for token in right]

    def run(self, limit: int = 10_000) -> None:
        """Run steps until all requests are complete."""
        for _ in range(limit):
            if (
                self.step() is None
                and self.in_flight is None
                and not (self.scheduler.running or len(self.scheduler.waiting) or self.scheduler.fetching)
            ):
                return
        raise AssertionError("it does not end")


def simulation(num_blocks: int = 64, block_size: int = 4, **options: object) -> Simulation:
    names = ("ahead", "guess", "dice", "stores")
    own = {name: options.pop(name) for name in names if name in options}
    settings: dict[str, object] = {"max_sequences": 8, "max_batch_tokens": 32, **options}
    scheduler = Scheduler(BlockPool(num_blocks), block_size=block_size, **settings)  # type: ignore[arg-type]
    return Simulation(scheduler, **own)  # type: ignore[arg-type]
