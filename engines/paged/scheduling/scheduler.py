"""Plans steps by one rule: each sequence catches up with its tokens, within a budget of rows.

A decoding sequence lacks one token, a newly admitted one its prompt, a preempted one all its tokens. So there are no
phases, and a step may hold all kinds:

    1. sequences that lack one row get it: decoding never waits for a prompt;
    2. running sequences that lack more share the rest of the budget, in their order;
    3. waiting sequences are admitted while there is a seat, and blocks for all their tokens. One whose beginning may be
       in the store (`connect_store`) is looked up there first, and lets those behind it pass meanwhile.

Where blocks run out, the least urgent sequence (lowest priority, then youngest) is preempted: it gives up its blocks
and waits again. Their content stays cached while the room is not needed, so that catching up is mostly a look-up.

Pure: no clock, no torch, no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from engines.paged.base.types import FinishReason
from engines.paged.cache.block_pool import BlockPool
from engines.paged.scheduling.block_manager import BlockManager, OnFull
from engines.paged.scheduling.sequence import ScheduledChunk, SchedulerOutput, Sequence, SequenceStatus, WaitingQueue

# Called with a waiting sequence, the names of its blocks, and how many of the first are cached: whether it is to wait
# for more of them, until `fetched` is called.
LookUp = Callable[[Sequence, list[bytes], int], bool]


_PLACE = attrgetter("place")


class Scheduler:
    """The running and the waiting sequences, and their blocks."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_sequences: int,
        max_batch_tokens: int,
        prefix_cache: bool = True,
        chunk_tokens: int | None = None,
    ) -> None:
        """`chunk_tokens` (deterministic mode): prompts are cut at its multiples only, answers are recomputed token by
        token, and only blocks computed so are shared; a multiple of the block size."""
        self.pool = pool
        self.block_manager = BlockManager(pool, block_size, shares=prefix_cache, chunk_tokens=chunk_tokens)
        self.max_sequences = max_sequences
        self.max_batch_tokens = max_batch_tokens
        self._chunk_tokens = chunk_tokens
        self.running: list[Sequence] = []  # in the order of admission
        self.waiting = WaitingQueue()
        self.fetching: set[Sequence] = set()
        self._look_up: LookUp | None = None
        self._hurried: set[Sequence] = set()  # sequences with a deadline
        self._slots = list(range(max_sequences - 1, -1, -1))
        self._chunks: dict[Sequence, ScheduledChunk] = {}  # of the step being planned
        self._copies: dict[Sequence, tuple[int, int]] = {}
        self.num_preemptions = 0
        self.num_prompt_tokens = 0  # of admitted prompts
        self.num_cached_tokens = 0  # of those: cached

    def connect_store(self, look_up: LookUp, on_full: OnFull) -> None:
        """Look sequences up in a store before they are admitted, and report full blocks to it."""
        self._look_up = look_up
        self.block_manager.on_full = on_full

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        sequence.status = SequenceStatus.WAITING
        self.waiting.add(sequence)
        if sequence.request.deadline is not None:
            self._hurried.add(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence in any state. Its blocks are free at once: steps launched before run before any step that
        could overwrite them."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self._release_seat(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        self.fetching.discard(sequence)
        self._hurried.discard(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        sequence.drafts = []

    def fetched(self, sequence: Sequence) -> None:
        """The stored blocks of a sequence are in the cache: it waits for room, unless it has ended."""
        if sequence.status is SequenceStatus.FETCHING:
            self.fetching.discard(sequence)
            self.add(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed."""
        return [each for each in self._hurried if (each.request.deadline or 0) <= now]

    # A step

    def plan(self, prefill_rows: int | None = None) -> SchedulerOutput | None:
        """The next step, None where there is nothing to compute. `prefill_rows` bounds prompt rows beside decoding
        rows."""
        self._chunks, self._copies = {}, {}
        budget = self.max_batch_tokens
        catching_up = []
        for sequence in tuple(self.running):
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # preempted for an earlier one
            lacking = self._lacking(sequence)
            if lacking > 1:
                catching_up.append(sequence)
            elif lacking == 1 and budget > 0 and (rows := self._decode(sequence, budget)):
                budget -= rows
        if self._chunks and prefill_rows is not None:
            budget = min(budget, prefill_rows)
        for sequence in catching_up:
            if budget <= 0:
                break
            if sequence.status is SequenceStatus.RUNNING:
                budget -= self._prefill(sequence, budget)
        while budget > 0 and (first := self.waiting.first) is not None:
            if self._starts_fetch(first):
                continue
            if self._admit(first):
                budget -= self._prefill(first, budget)
            elif not self._is_stuck():
                break
            else:
                self._preempt(max(self.running, key=_PLACE))
        return self._close()

    def advance(self, chunk: ScheduledChunk, tokens: list[int]) -> None:
        """Add the tokens that a computed chunk has yielded: the drafts that were right and one more."""
        sequence = chunk.sequence
        if chunk.num_samples:
            sequence.num_in_flight -= 1
        if sequence.status is SequenceStatus.FINISHED:
            return
        sequence.tokens += tokens
        if chunk.drafts and sequence.status is SequenceStatus.RUNNING:
            sequence.num_computed = chunk.start + len(tokens)
        self.block_manager.publish_full(sequence)

    def move(self, moves: list[tuple[Sequence, Sequence, list[int]]]) -> None:
        """Continue sequences from others, see `BlockManager.move`; those without a seat wait for one."""
        self.block_manager.move(moves)
        for sequence, _, _ in moves:
            sequence.is_resting = False
            if sequence.status is SequenceStatus.WAITING:
                self.add(sequence)

    def rest(self, sequence: Sequence) -> None:
        """A sequence has nothing to compute before it is moved: it keeps its seat until that is needed."""
        sequence.is_resting = True
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)

    # Parts of a step

    def _lacking(self, sequence: Sequence) -> int:
        """Rows that a running sequence lacks and that can be computed now."""
        if sequence.num_in_flight and (sequence.needs_host or sequence.num_tokens >= sequence.max_tokens):
            return 0  # the next token must be known first, or the sequence is at its full length
        return sequence.num_tokens - sequence.num_computed

    def _decode(self, sequence: Sequence, budget: int) -> int:
        drafts = sequence.drafts[: budget - 1]
        room = sequence.max_tokens - sequence.num_tokens - 1  # behind the one token that is certain
        drafts = drafts[: max(0, room)]
        if drafts and not self.block_manager.has_room(sequence, sequence.num_computed + 1 + len(drafts)):
            drafts = []  # no sequence is preempted for a draft
        if not self._allocate(sequence, sequence.num_computed + 1 + len(drafts)):
            return 0
        return self._schedule(sequence, 1 + len(drafts), 1 + len(drafts), tuple(drafts))

    def _prefill(self, sequence: Sequence, budget: int) -> int:
        start, lacking = sequence.num_computed, sequence.num_tokens - sequence.num_computed
        count = min(lacking, budget)
        if self._chunk_tokens is not None:
            prompt_remaining = sequence.num_prompt - start
            count = max(1, min(prompt_remaining, self._chunk_tokens - start % self._chunk_tokens))
            if count > budget and any(chunk.count > 1 for chunk in self._chunks.values()):
                return 0  # one chunk per step goes beside decoding rows, at any budget
        if not self._allocate(sequence, start + count):
            return 0
        return self._schedule(sequence, count, 1 if count == lacking else 0)

    def _schedule(self, sequence: Sequence, count: int, num_samples: int, drafts: tuple[int, ...] = ()) -> int:
        self._chunks[sequence] = ScheduledChunk(sequence, sequence.num_computed, count, num_samples, drafts)
        return count

    def _starts_fetch(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence steps aside while its beginning is looked up in the store: once each time it
        waits."""
        if self._look_up is None or sequence.was_looked_up or sequence.num_in_flight:
            return False
        if len(self.running) + len(self.fetching) >= self.max_sequences:
            return False  # fetched blocks may be evicted before there is a seat
        sequence.was_looked_up = True
        names, num_here = self.block_manager.chain(sequence)
        if num_here == len(names) or not self._look_up(sequence, names, num_here):
            return False
        self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FETCHING
        self.fetching.add(sequence)
        return True

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence a seat and blocks for all its tokens."""
        if sequence.num_in_flight:
            return False  # preempted while a step computes its next token, which must be known first
        # Each running sequence may need a block soon, and should get it without a preemption.
        while len(self.running) >= self.max_sequences or not self.block_manager.fits(sequence, len(self.running)):
            lower = [each for each in self.running if each.request.priority < sequence.request.priority]
            if not lower:
                return False
            self._preempt(max(lower, key=_PLACE))
        self.waiting.remove(sequence)
        self.block_manager.occupy(sequence)
        if not sequence.num_preempted:
            sequence.num_cached = sequence.num_computed
            self.num_prompt_tokens += sequence.num_prompt
            self.num_cached_tokens += sequence.num_computed
        sequence.slot = self._slots.pop()
        sequence.status = SequenceStatus.RUNNING
        self.running.append(sequence)
        return True

    def _is_stuck(self) -> bool:
        """Whether all running sequences wait for one that waits for room: beams for another beam of their request."""
        is_waiting = not any(each.num_in_flight or self._lacking(each) for each in self.running)
        return is_waiting and not self._chunks and bool(self.running)

    def _allocate(self, sequence: Sequence, end: int) -> bool:
        """Allocate blocks to write positions up to `end`, preempting others where necessary; False where the sequence
        itself was preempted."""
        while not self.block_manager.has_room(sequence, end):
            victim = max(self.running, key=_PLACE)
            self._preempt(victim)
            if victim is sequence:
                return False
        copy = self.block_manager.extend(sequence, end)
        if copy is not None:
            self._copies[sequence] = copy
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release_seat(sequence)
        self._chunks.pop(sequence, None)
        self._copies.pop(sequence, None)
        sequence.num_preempted += 1
        sequence.was_looked_up = False
        sequence.drafts = []
        self.num_preemptions += 1
        sequence.status = SequenceStatus.WAITING
        if not sequence.is_resting:
            self.add(sequence)

    def _release_seat(self, sequence: Sequence) -> None:
        self.block_manager.release(sequence)
        self._slots.append(sequence.slot)
        sequence.slot = -1

    def _close(self) -> SchedulerOutput | None:
        """The planned step, counted as computed: the device runs steps in the order of their launch."""
        chunks = sorted(self._chunks.values(), key=lambda chunk: chunk.count > 1)
        copies = tuple(self._copies.values())
        self._chunks, self._copies = {}, {}
        if not chunks:
            return None
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.num_computed = chunk.end
            sequence.num_in_flight += chunk.num_samples > 0
            sequence.drafts = []
            self.block_manager.publish_full(sequence)
        return SchedulerOutput(tuple(chunks), copies)
