"""Requests under way: what a step has yielded is given to those it belongs to, until each has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engines.core.errors import EngineError
from engines.paged.base.types import FinishReason
from engines.paged.generation.beams import BeamSearch
from engines.paged.generation.choice import Choice
from engines.paged.generation.generation import Generation
from engines.paged.generation.prefill_pacing import Pacing
from engines.paged.generation.statistics import EngineStatistics
from engines.paged.runner.draft_model import wanted
from engines.paged.runner.runner import Launched, Sampled
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import ScheduledChunk, Sequence, SequenceStatus

logger = logging.getLogger(__name__)

_NOT_A_NUMBER = (
    "the model's scores are not numbers (NaN) behind {tokens} tokens: its weights or its adapter are broken, or "
    "float16 overflows: try dtype bfloat16 or float32"
)


class RequestTable:
    """Generations by their ids, and whose each sequence is. All of it is the engine's thread's."""

    def __init__(
        self,
        scheduler: Scheduler,
        pacing: Pacing,
        statistics: EngineStatistics,
        *,
        drafts: bool,
        checks: bool,
        decode: Callable[[tuple[int, ...]], str],
        on_release: Callable[[Sequence], None],
    ) -> None:
        """`drafts`: a draft model guesses. `checks`: scores that are not numbers fail a request.
        `on_release` is told of sequences that end."""
        self._scheduler = scheduler
        self._pacing = pacing
        self._guess_seconds = 0.0  # of a draft model, for one guess
        self._statistics = statistics
        self._drafts = drafts
        self._checks = checks
        self._decode = decode
        self._on_release = on_release
        self._generations: dict[str, Generation] = {}
        self._owners: dict[Sequence, tuple[Generation, Choice]] = {}

    def __len__(self) -> int:
        return len(self._generations)

    def begin(self, generation: Generation) -> None:
        """Have a request scheduled: its prompt once, whatever it has of choices."""
        id = generation.request.id
        self._statistics.num_requests += 1
        if self._generations.setdefault(id, generation) is not generation:
            self._end(generation, FinishReason.ERROR, f"a request with the id '{id}' is under way already")
            return
        for choice in generation.choices:
            self._owners[choice.sequence] = generation, choice
        self._scheduler.add(generation.choices[0].sequence)

    def cancel(self, request_id: str) -> None:
        """End a request, if it is under way."""
        generation = self._generations.get(request_id)
        if generation is not None:
            self._end(generation, FinishReason.CANCELLED)

    def end_expired(self) -> None:
        """End those whose deadline is over."""
        for sequence in self._scheduler.expired(time.monotonic()):
            owner = self._owners.get(sequence)
            if owner is not None:
                self._end(owner[0], FinishReason.DEADLINE)

    def fail_all(self, error: str) -> None:
        """A step failed: nobody can say whose fault it is, nor what the cache holds."""
        for generation in tuple(self._generations.values()):
            self._end(generation, FinishReason.ERROR, error)
        self._scheduler.pool.forget()

    def end_all(self) -> None:
        """The engine is being stopped."""
        for generation in tuple(self._generations.values()):
            self._end(generation, FinishReason.CANCELLED, "the engine is being stopped")

    # What a step has yielded

    def read(self, launched: Launched, results: list[Sampled], seconds: float) -> None:
        """A step has taken so long, and yielded this, by piece."""
        plan, statistics = launched.plan, self._statistics
        self._guess_seconds = launched.guess_seconds
        statistics.num_steps += 1
        statistics.num_rows += plan.num_rows
        statistics.step.observe(seconds)
        if not any(launched.drafts):  # what guesses add is no part of a step that decodes
            self._pacing.learn(plan.num_decoding, plan.num_prefill_rows, seconds)
        now = time.monotonic()
        for index, (piece, sampled) in enumerate(zip(plan.pieces, results, strict=True)):
            self._read_piece(piece, launched.drafts[index], sampled, now)

    def _read_piece(self, piece: ScheduledChunk, drafts: tuple[int, ...], sampled: Sampled, now: float) -> None:
        sequence = piece.sequence
        owner = self._owners.get(sequence)
        if owner is None or sequence.status is SequenceStatus.FINISHED:
            self._scheduler.advance(piece, [])
            return
        try:
            self._tell_piece(*owner, piece, drafts, sampled, now)
        except EngineError as error:  # its grammar has become too hard, or leaves nothing that may come
            self._end(owner[0], FinishReason.ERROR, error.message)
        except Exception as error:  # that is one request's fault
            logger.exception("request %s failed", owner[0].request.id)
            self._end(owner[0], FinishReason.ERROR, f"{type(error).__name__}: {error}")

    def _tell_piece(
        self,
        generation: Generation,
        choice: Choice,
        piece: ScheduledChunk,
        drafts: tuple[int, ...],
        sampled: Sampled,
        now: float,
    ) -> None:
        sequence = piece.sequence
        if sampled.prompt:
            generation.note_prompt(piece.start + 1, sampled.prompt)
        if not sampled.tokens:
            self._scheduler.advance(piece, [])
            return
        if self._checks and any(logprob != logprob for logprob in sampled.logprobs):
            self._scheduler.advance(piece, [])
            self._scheduler.pool.forget()  # what it computed may be shared by name
            self._end(generation, FinishReason.ERROR, _NOT_A_NUMBER.format(tokens=piece.end))
            return
        if generation.beams is not None:
            self._scheduler.advance(piece, [])
            self._scheduler.rest(sequence)
            self._read_beam(generation, generation.beams, sequence.choice, sampled, now)
            return
        if drafts and choice.judge is not None:
            num_right = len(sampled.tokens) - 1
            choice.judge.learn(len(drafts), num_right)
            self._statistics.num_guessed += len(drafts)
            self._statistics.num_right += num_right
        grown = choice.grow(sampled)
        self._observe(generation, choice, len(grown.tokens), now)
        is_first = sequence.num_output == 0
        self._scheduler.advance(piece, grown.tokens)
        if grown.finish_reason is not None:
            self._release(sequence, grown.finish_reason)
        elif choice.judge is not None and sequence.status is SequenceStatus.RUNNING:
            cost = self._pacing.guess_cost(self._guess_seconds)
            if cost is not None and self._drafts:
                sequence.drafts = wanted(choice.judge.num_guesses(cost))
            elif cost is not None:
                sequence.drafts = choice.guesses(cost)
        if is_first and sequence.choice == 0 and len(generation.choices) > 1:
            self._fork(generation)
        if all(each.sequence.status is SequenceStatus.FINISHED for each in generation.choices):
            self._forget(generation)
            self._statistics.count_end(FinishReason.STOP)
        # Whoever is told of an end may look at once at what is free.
        generation.tell(choice, grown, is_first=is_first)

    def _read_beam(self, generation: Generation, beams: BeamSearch, seat: int, sampled: Sampled, now: float) -> None:
        """A beam has told what may follow it; all go on once each has."""
        moves = beams.offer(seat, sampled.top[0])
        if moves is None:
            return
        seats = [choice.sequence for choice in generation.choices]
        if beams.is_done:
            for sequence in seats:
                self._release(sequence, FinishReason.STOP)
            self._forget(generation)
            self._statistics.count_end(FinishReason.STOP)
            generation.tell_beams(self._decode)
            self._observe(generation, generation.choices[0], generation.usage.completion, now)
            return
        tokens = [[*seats[move.parent].tokens, move.token] for move in moves]
        self._scheduler.move([(seats[m.beam], seats[m.parent], each) for m, each in zip(moves, tokens, strict=True)])

    def _fork(self, generation: Generation) -> None:
        """The prompt is computed: its other choices share it."""
        first = generation.choices[0].sequence
        for choice in generation.choices[1:]:
            if choice.sequence.status is not SequenceStatus.FINISHED:
                choice.sequence.parent = first
                self._scheduler.add(choice.sequence)

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

    # Endings

    def _release(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is not SequenceStatus.FINISHED:
            self._on_release(sequence)
            self._scheduler.finish(sequence, reason)

    def _end(self, generation: Generation, reason: FinishReason, error: str = "") -> None:
        """End all that is left of a request."""
        ended = [choice for choice in generation.choices if choice.sequence.status is not SequenceStatus.FINISHED]
        if ended:
            self._statistics.count_end(reason)
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
