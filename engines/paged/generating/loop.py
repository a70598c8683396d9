"""The engine's thread: takes requests in, plans a step, launches it, reads the step before, tells what came.

On a GPU it runs one step ahead: while the device computes step n + 1, the tokens of step n are read and told. What
it learns there one step late (a stop text) costs one row of waste. On a CPU there is nothing to overlap: each step
is read at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from engines.paged.generating.beams import BeamSearch
from engines.paged.generating.choice import Choice
from engines.paged.generating.generation import Generation
from engines.paged.generating.pacing import Pacing
from engines.paged.generating.statistics import Statistics
from engines.paged.runner.drafting import wanted
from engines.paged.runner.runner import Launched, Runner, Sampled
from engines.paged.scheduling.plan import Piece
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import Sequence, Status
from engines.paged.values import FinishReason

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 0.01

_NOT_A_NUMBER = (
    "the model's scores are not numbers (NaN) behind {tokens} tokens: its weights or its adapter are broken, or "
    "float16 overflows: try dtype bfloat16 or float32"
)


class EngineLoop:
    """Generations under way. `submit` and `cancel` may be called on any thread, the rest is one thread's."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        pacing: Pacing,
        statistics: Statistics,
        *,
        ahead: bool,
        drafts: bool,
        decode: Callable[[tuple[int, ...]], str],
        on_release: Callable[[Sequence], None],
    ) -> None:
        """`drafts`: a draft model guesses. `on_release` is told of sequences that end."""
        self._decode = decode
        self.scheduler = scheduler
        self._runner = runner
        self._pacing = pacing
        self._statistics = statistics
        self._ahead = ahead
        self._drafts = drafts
        self._on_release = on_release
        self._generations: dict[str, Generation] = {}
        self._owners: dict[Sequence, tuple[Generation, Choice]] = {}
        self._inbox: deque[Generation | str] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._stop_by = 0.0
        self._in_flight: Launched | None = None
        self._last_read = 0.0

    # From any thread

    def submit(self, generation: Generation) -> None:
        self._put(generation)

    def cancel(self, request_id: str) -> None:
        """End a request, if it is under way, before the next step."""
        self._put(request_id)

    def stop(self, grace_seconds: float) -> None:
        """Take no more; end when those under way are done, or when their grace is over."""
        with self._wake:
            self._stop_by = time.monotonic() + grace_seconds
            self._is_stopping = True
            self._wake.notify()

    @property
    def num_requests(self) -> int:
        return len(self._generations) + len(self._inbox)

    def _put(self, item: Generation | str) -> None:
        with self._wake:
            self._inbox.append(item)
            self._wake.notify()

    # The thread

    def run(self) -> None:
        """Until it is stopped."""
        while True:
            is_idle = not self._generations and self._in_flight is None
            with self._wake:
                while is_idle and not self._inbox and not self._is_stopping:
                    self._wake.wait()
            if self._is_stopping and ((is_idle and not self._inbox) or time.monotonic() >= self._stop_by):
                break
            self._take_in()
            self._end_expired()
            if not self.step():
                with self._wake:  # whatever it waits for, it does not wait at full speed
                    self._wake.wait_for(lambda: self._inbox or self._is_stopping, _IDLE_SECONDS)
        self._end_all()

    def step(self) -> bool:
        """Launch one step where there is one to compute, and read one that was launched; whether there was either."""
        now = time.perf_counter()
        if self._in_flight is None:
            self._last_read = now
        try:
            plan = self.scheduler.plan(self._pacing.prefill_rows())
            launched = self._runner.launch(plan) if plan is not None else None
        except Exception as error:
            logger.exception("a step failed")
            self._in_flight = None
            self._fail_all(f"the engine failed: {type(error).__name__}: {error}")
            return True
        has_launched = launched is not None
        if self._ahead:
            launched, self._in_flight = self._in_flight, launched
        if launched is not None:
            self._read(launched)
        return has_launched or launched is not None

    def _collect(self, launched: Launched) -> list[Sampled] | None:
        """What a step has yielded; None where the device failed at it, of which all have been told then."""
        try:
            return self._runner.collect(launched)
        except Exception as error:
            logger.exception("a step failed")
            self._in_flight = None
            self._fail_all(f"the engine failed: {type(error).__name__}: {error}")
            return None

    def _take_in(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, str):
                generation = self._generations.get(item)
                if generation is not None:
                    self._statistics.num_cancelled += 1
                    self._end(generation, FinishReason.CANCELLED)
                continue
            self._generations[item.request.id] = item
            self._statistics.num_requests += 1
            for choice in item.choices:
                self._owners[choice.sequence] = item, choice
            self.scheduler.add(item.choices[0].sequence)

    def _end_expired(self) -> None:
        for sequence in self.scheduler.expired(time.monotonic()):
            owner = self._owners.get(sequence)
            if owner is not None:
                self._end(owner[0], FinishReason.DEADLINE)

    def _read(self, launched: Launched) -> None:
        results = self._collect(launched)
        if results is None:
            return
        now = time.perf_counter()
        plan, seconds = launched.plan, now - self._last_read
        self._last_read = now
        statistics = self._statistics
        statistics.num_steps += 1
        statistics.num_rows += plan.num_rows
        statistics.step.observe(seconds)
        self._pacing.learn(plan.num_decoding, plan.num_prefill_rows, seconds)
        clock = time.monotonic()
        for index, (piece, sampled) in enumerate(zip(plan.pieces, results, strict=True)):
            self._read_piece(piece, launched.drafts[index], sampled, clock)

    def _read_piece(self, piece: Piece, drafts: tuple[int, ...], sampled: Sampled, now: float) -> None:
        sequence = piece.sequence
        owner = self._owners.get(sequence)
        if owner is None or sequence.status is Status.FINISHED:
            self.scheduler.advance(piece, [])
            return
        try:
            self._tell_piece(*owner, piece, drafts, sampled, now)
        except Exception as error:  # of its grammar or its text: that is one request's fault
            logger.exception("request %s failed", owner[0].request.id)
            self._statistics.num_failed += 1
            self._end(owner[0], FinishReason.ERROR, f"{type(error).__name__}: {error}")

    def _tell_piece(
        self,
        generation: Generation,
        choice: Choice,
        piece: Piece,
        drafts: tuple[int, ...],
        sampled: Sampled,
        now: float,
    ) -> None:
        sequence = piece.sequence
        if sampled.prompt:
            generation.note_prompt(sampled.prompt)
        if not sampled.tokens:
            self.scheduler.advance(piece, [])
            return
        if any(logprob != logprob for logprob in sampled.logprobs):
            self.scheduler.advance(piece, [])
            self.scheduler.pool.forget()  # what it computed may be shared by name
            self._statistics.num_failed += 1
            self._end(generation, FinishReason.ERROR, _NOT_A_NUMBER.format(tokens=piece.end))
            return
        if generation.beams is not None:
            self.scheduler.advance(piece, [])
            self._read_beam(generation, generation.beams, sequence.choice, sampled)
            return
        if drafts and choice.judge is not None:
            num_right = len(sampled.tokens) - 1
            choice.judge.learn(len(drafts), num_right)
            self._statistics.num_guessed += len(drafts)
            self._statistics.num_right += num_right
        grown = choice.grow(sampled)
        self._observe(generation, choice, len(grown.tokens), now)
        is_first = sequence.num_output == 0
        self.scheduler.advance(piece, grown.tokens)
        if grown.finish_reason is not None:
            self._release(sequence, grown.finish_reason)
        elif choice.judge is not None and sequence.status is Status.RUNNING:
            cost = self._pacing.row_cost
            if self._drafts:
                sequence.drafts = wanted(choice.judge.num_guesses(cost))
            else:
                sequence.drafts = choice.guesses(cost)
        if is_first and sequence.choice == 0 and len(generation.choices) > 1:
            self._fork(generation)
        if all(each.sequence.status is Status.FINISHED for each in generation.choices):
            self._forget(generation)
        # Whoever is told of an end may look at once at what is free.
        generation.tell(choice, grown, is_first=is_first)

    def _read_beam(self, generation: Generation, beams: BeamSearch, seat: int, sampled: Sampled) -> None:
        """A beam has told what may follow it; all go on once each has."""
        moves = beams.offer(seat, sampled.top[0])
        if moves is None:
            return
        seats = [choice.sequence for choice in generation.choices]
        if beams.is_done:
            for sequence in seats:
                self._release(sequence, FinishReason.STOP)
            self._forget(generation)
            generation.tell_beams(self._decode)
            return
        is_first = seats[0].num_output == 0
        tokens = [[*seats[move.parent].tokens, move.token] for move in moves]
        self.scheduler.move([(seats[m.beam], seats[m.parent], each) for m, each in zip(moves, tokens, strict=True)])
        if is_first:
            for move in moves[1:]:
                self.scheduler.add(seats[move.beam])

    def _fork(self, generation: Generation) -> None:
        """The prompt is computed: its other choices share it."""
        first = generation.choices[0].sequence
        for choice in generation.choices[1:]:
            if choice.sequence.status is not Status.FINISHED:
                choice.sequence.parent = first
                self.scheduler.add(choice.sequence)

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
        if sequence.status is not Status.FINISHED:
            self._on_release(sequence)
            self.scheduler.finish(sequence, reason)

    def _end(self, generation: Generation, reason: FinishReason, error: str = "") -> None:
        """End all that is left of a request."""
        ended = [choice for choice in generation.choices if choice.sequence.status is not Status.FINISHED]
        for choice in ended:
            self._release(choice.sequence, reason)
        self._forget(generation)
        for choice in ended:
            generation.end(choice, reason, error)

    def _forget(self, generation: Generation) -> None:
        if self._generations.pop(generation.request.id, None) is not None:
            self._statistics.num_finished += 1
        for choice in generation.choices:
            self._owners.pop(choice.sequence, None)

    def _fail_all(self, error: str) -> None:
        """A step failed: nobody can say whose fault it is, nor what the cache holds."""
        for generation in tuple(self._generations.values()):
            self._statistics.num_failed += 1
            self._end(generation, FinishReason.ERROR, error)
        self.scheduler.pool.forget()

    def _end_all(self) -> None:
        self._take_in()
        self._in_flight = None
        for generation in tuple(self._generations.values()):
            self._end(generation, FinishReason.CANCELLED, "the engine is being stopped")
