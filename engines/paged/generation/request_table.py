"""The active requests: each result of a step goes to its request, until the request has ended."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from engines.core.errors import EngineError
from engines.paged.base.types import FinishReason
from engines.paged.generation.generation import BeamGeneration, Choice, Generation
from engines.paged.generation.prefill_pacing import Pacing
from engines.paged.runner.runner import Launched, Sampled
from engines.paged.sampling.batch import SamplingBatches
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import ScheduledChunk, Sequence, SequenceStatus
from gateway.protocol.prometheus_text import Histogram

_log = logging.getLogger(__name__)

_NOT_A_NUMBER = (
    "the model's scores are not numbers (NaN) behind {tokens} tokens: its weights or its adapter are broken, or "
    "float16 overflows: try dtype bfloat16 or float32"
)


class _ChunkResult(NamedTuple):
    chunk: ScheduledChunk
    drafts: tuple[int, ...]
    sampled: Sampled
    now: float  # of time.monotonic()


class RequestTable:
    """Generations by id, and the owner of each sequence. Used on the engine's thread alone."""

    def __init__(
        self, scheduler: Scheduler, pacing: Pacing, batches: SamplingBatches, statistics: EngineStatistics, checks: bool
    ) -> None:
        """`checks`: NaN scores fail their request."""
        self._scheduler = scheduler
        self._pacing = pacing
        self._batches = batches
        self._draft_seconds = 0.0  # of a draft model, for one token
        self._statistics = statistics
        self._checks = checks
        self._generations: dict[str, Generation] = {}
        self._owners: dict[Sequence, tuple[Generation, Choice]] = {}

    def __len__(self) -> int:
        return len(self._generations)

    def begin(self, generation: Generation) -> None:
        """Schedule a request: its prompt is computed once for all choices."""
        id = generation.request.id
        self._statistics.num_requests += 1
        if self._generations.setdefault(id, generation) is not generation:
            self._end(generation, FinishReason.ERROR, f"a request with the id '{id}' is under way already")
            return
        for choice in generation.choices:
            self._owners[choice.sequence] = generation, choice
        self._scheduler.add(generation.choices[0].sequence)

    def cancel(self, request_id: str) -> None:
        """End a request, if it is active."""
        generation = self._generations.get(request_id)
        if generation is not None:
            self._end(generation, FinishReason.CANCELLED)

    def end_expired(self) -> None:
        """End requests whose deadline has passed."""
        for sequence in self._scheduler.expired(time.monotonic()):
            if (owner := self._owners.get(sequence)) is not None:
                self._end(owner[0], FinishReason.DEADLINE)

    def end_all(self, reason: FinishReason, error: str) -> None:
        for generation in tuple(self._generations.values()):
            self._end(generation, reason, error)

    # Results of a step

    def read(self, launched: Launched, results: list[Sampled], seconds: float) -> None:
        """Take the results of a step, one per chunk, and how long it took."""
        plan, statistics = launched.plan, self._statistics
        self._draft_seconds = launched.draft_seconds
        statistics.num_steps += 1
        statistics.num_rows += plan.num_rows
        statistics.step.observe(seconds)
        if not any(launched.drafts):  # drafts make a step longer than one that decodes
            self._pacing.observe(plan.num_decoding, plan.num_prefill_rows, seconds)
        now = time.monotonic()
        for chunk, drafts, sampled in zip(plan.chunks, launched.drafts, results, strict=True):
            owner = self._owners.get(chunk.sequence)
            if owner is None or chunk.sequence.status is SequenceStatus.FINISHED:
                self._scheduler.advance(chunk, [])
                continue
            try:
                self._deliver(*owner, _ChunkResult(chunk, drafts, sampled, now))
            except EngineError as error:  # the grammar has become too complex, or allows no token
                self._end(owner[0], FinishReason.ERROR, error.message)
            except Exception as error:
                _log.exception("request %s failed", owner[0].request.id)
                self._end(owner[0], FinishReason.ERROR, f"{type(error).__name__}: {error}")

    def _deliver(self, generation: Generation, choice: Choice, result: _ChunkResult) -> None:
        chunk, _, sampled, _ = result
        if sampled.prompt:
            generation.add_prompt_logprobs(chunk.start + 1, sampled.prompt)
        if not sampled.tokens:
            self._scheduler.advance(chunk, [])
        elif self._checks and any(logprob != logprob for logprob in sampled.logprobs):
            self._scheduler.advance(chunk, [])
            self._scheduler.pool.forget()  # other requests may share its blocks
            self._end(generation, FinishReason.ERROR, _NOT_A_NUMBER.format(tokens=chunk.end))
        elif isinstance(generation, BeamGeneration):
            self._offer_beam(generation, result)
        else:
            self._deliver_tokens(generation, choice, result)

    def _deliver_tokens(self, generation: Generation, choice: Choice, result: _ChunkResult) -> None:
        chunk, drafts, sampled, now = result
        sequence, drafter = chunk.sequence, choice.drafter
        if drafts and drafter is not None:
            num_right = len(sampled.tokens) - 1
            drafter.observe(len(drafts), num_right)
            self._statistics.num_guessed += len(drafts)
            self._statistics.num_right += num_right
        step = choice.grow(sampled)
        self._observe(generation, choice, len(step.tokens), now)
        is_first = sequence.num_output == 0
        self._scheduler.advance(chunk, step.tokens)
        if step.finish_reason is not None:
            self._release(sequence, step.finish_reason)
        elif drafter is not None and sequence.status is SequenceStatus.RUNNING:
            cost = self._pacing.draft_cost(self._draft_seconds)
            if cost is not None:
                sequence.drafts = drafter.draft(sequence.tokens, cost)
        if is_first and sequence.choice == 0:  # the prompt is computed: the other choices share its blocks
            for other in generation.choices[1:]:
                if other.sequence.status is not SequenceStatus.FINISHED:
                    other.sequence.parent = sequence
                    self._scheduler.add(other.sequence)
        if all(each.sequence.status is SequenceStatus.FINISHED for each in generation.choices):
            self._forget(generation)
            self._statistics.num_ended[FinishReason.STOP] += 1
        # Last: a listener that sees the end may look at the free blocks at once.
        generation.deliver(choice, step, is_first=is_first)

    def _offer_beam(self, generation: BeamGeneration, result: _ChunkResult) -> None:
        """Offer one beam's candidates to the search; the beams move once each has offered."""
        chunk, beams = result.chunk, generation.beams
        self._scheduler.advance(chunk, [])
        self._scheduler.rest(chunk.sequence)
        moves = beams.offer(chunk.sequence.choice, result.sampled.top[0])
        if moves is None:
            return
        seats = [choice.sequence for choice in generation.choices]
        if beams.is_done:
            for sequence in seats:
                self._release(sequence, FinishReason.STOP)
            self._forget(generation)
            self._statistics.num_ended[FinishReason.STOP] += 1
            generation.deliver_best()
            self._observe(generation, generation.choices[0], generation.usage.completion, result.now)
            return
        tokens = [[*seats[move.parent].tokens, move.token] for move in moves]
        self._scheduler.move([(seats[m.beam], seats[m.parent], each) for m, each in zip(moves, tokens, strict=True)])

    def _observe(self, generation: Generation, choice: Choice, num_tokens: int, now: float) -> None:
        statistics = self._statistics
        statistics.num_output_tokens += num_tokens
        if choice.last_time:
            for _ in range(num_tokens):
                statistics.next_token.observe((now - choice.last_time) / num_tokens)
        elif not generation.has_begun:
            generation.has_begun = True
            statistics.first_token.observe(now - generation.arrived)
        choice.last_time = now

    # Ends

    def _release(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is not SequenceStatus.FINISHED:
            self._batches.release(sequence.sampling)
            self._scheduler.finish(sequence, reason)

    def _end(self, generation: Generation, reason: FinishReason, error: str = "") -> None:
        """End all unfinished choices of a request."""
        ended = [choice for choice in generation.choices if choice.sequence.status is not SequenceStatus.FINISHED]
        if ended:
            self._statistics.num_ended[reason] += 1
        for choice in ended:
            self._release(choice.sequence, reason)
        self._forget(generation)
        for choice in ended:
            generation.end(choice, reason, error)

    def _forget(self, generation: Generation) -> None:
        if self._generations.get(generation.request.id) is generation:
            del self._generations[generation.request.id]
        for choice in generation.choices:
            self._owners.pop(choice.sequence, None)


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class EngineStatistics:
    """Written by the engine's thread alone."""

    num_requests: int = 0
    # Each ended request counts once; STOP stands for LENGTH, too.
    num_ended: Counter[FinishReason] = field(default_factory=Counter)
    num_output_tokens: int = 0
    num_steps: int = 0
    num_rows: int = 0
    num_guessed: int = 0  # drafted tokens
    num_right: int = 0  # of those: right
    first_token: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    next_token: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    step: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
