"""Who computes what in the next step, by one rule: each sequence catches up with its tokens, within a budget of rows.

A sequence that decodes lacks one token, one that was just admitted lacks its prompt; one that was preempted lacks
all its tokens again. So there are no phases, and a step may hold all kinds:

    1. those that lack one row get it: nobody's decoding waits for a prompt;
    2. running sequences that lack more share what is left of the budget, in their order;
    3. then waiting ones are admitted, while there is a seat, and blocks for all their tokens.

Where blocks run out, the sequence that is least urgent (lowest priority, then youngest) gives up its blocks and waits
again. Their content stays cached as long as nobody needs the room, so that catching up again is mostly a look-up.

Pure: no clock, no torch, no dice.
"""

from __future__ import annotations

from collections.abc import Iterable

from engines.paged.cache.block_pool import NULL_BLOCK, BlockPool
from engines.paged.scheduling.plan import Piece, Plan
from engines.paged.scheduling.sequence import Sequence, Status
from engines.paged.scheduling.waiting import WaitingLine
from engines.paged.values import FinishReason


class Scheduler:
    """The running and the waiting, and whose the blocks are."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_sequences: int,
        max_batch_tokens: int,
        prefix_cache: bool = True,
        chunk: int | None = None,
    ) -> None:
        """`chunk` (deterministic mode): prompts are cut at its multiples only, answers are caught up with token by
        token, and only what was computed so is ever shared; a multiple of the block size."""
        if chunk is not None and chunk % block_size:
            raise ValueError(f"chunks of {chunk} tokens are not whole blocks of {block_size}")
        self.pool = pool
        self.block_size = block_size
        self.max_sequences = max_sequences
        self.max_batch_tokens = max_batch_tokens
        self.prefix_cache = prefix_cache
        self.chunk = chunk
        self.running: list[Sequence] = []  # in the order of admission
        self.waiting = WaitingLine()
        self._slots = list(range(max_sequences - 1, -1, -1))
        self._pieces: dict[Sequence, Piece] = {}  # of the plan that is being made
        self._copies: dict[Sequence, tuple[int, int]] = {}
        self.num_preemptions = 0
        self.num_prompt_tokens = 0  # of admitted prompts
        self.num_cached_tokens = 0  # of those: found in the cache

    def __repr__(self) -> str:
        return f"<Scheduler {len(self.running)} running, {len(self.waiting)} waiting, {self.pool!r}>"

    def add(self, sequence: Sequence) -> None:
        """Have a sequence wait for its turn."""
        sequence.status = Status.WAITING
        self.waiting.add(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence, wherever it is. Its blocks are free at once: steps that were launched before run before any
        that could write there."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self._let_go(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason
        sequence.drafts = []

    def expired(self, now: float) -> list[Sequence]:
        """Those whose deadline is over."""
        sequences: Iterable[Sequence] = (*self.running, *self.waiting)
        return [each for each in sequences if each.request.deadline is not None and each.request.deadline <= now]

    # A step

    def plan(self, prefill_rows: int | None = None) -> Plan | None:
        """The next step, None where there is nothing to compute. `prefill_rows` bounds the rows of prompts while
        somebody decodes."""
        self._pieces, self._copies = {}, {}
        left = self.max_batch_tokens
        catching_up = []
        for sequence in tuple(self.running):
            if sequence.status is not Status.RUNNING:
                continue  # preempted for one before it
            lacking = self._lacking(sequence)
            if lacking > 1:
                catching_up.append(sequence)
            elif lacking == 1 and left > 0 and (rows := self._decode(sequence, left)):
                left -= rows
        if self._pieces and prefill_rows is not None:
            left = min(left, prefill_rows)
        for sequence in catching_up:
            if left <= 0:
                break
            if sequence.status is Status.RUNNING:
                left -= self._prefill(sequence, left)
        while left > 0 and (first := self.waiting.first) is not None:
            if self._admit(first):
                left -= self._prefill(first, left)
            elif not self._is_stuck():
                break
            else:
                self._preempt(self._least_urgent(self.running))
        return self._close()

    def advance(self, piece: Piece, tokens: list[int]) -> None:
        """A piece has been computed, and yielded these tokens: of guesses, those that were right and one more."""
        sequence = piece.sequence
        if piece.num_samples:
            sequence.num_in_flight -= 1
        if sequence.status is Status.FINISHED:
            return
        sequence.tokens += tokens
        if piece.drafts and sequence.status is Status.RUNNING:
            sequence.num_computed = piece.start + len(tokens)
        self._name_blocks(sequence)

    def move(self, moves: list[tuple[Sequence, Sequence, list[int]]]) -> None:
        """Let running sequences go on from others of their request (beams): (sequence, whose blocks it takes over, its
        tokens from now on). What two of them write into a block of both, each writes into a copy."""
        taken = [(list(parent.blocks), parent.num_computed) for _, parent, _ in moves]
        for blocks, _ in taken:
            self.pool.share(blocks)
        for (sequence, _, tokens), (blocks, num_computed) in zip(moves, taken, strict=True):
            sequence.rewrite(tokens)
            if sequence.status is not Status.RUNNING:
                self.pool.free(blocks)  # it waits for room, and computes everything anew
                continue
            self.pool.free(sequence.blocks)
            sequence.blocks = blocks
            sequence.num_computed = min(num_computed, len(blocks) * self.block_size)
            sequence.num_named = min(sequence.num_named, sequence.num_computed // self.block_size)

    # Its parts

    def _lacking(self, sequence: Sequence) -> int:
        """Rows that a running sequence lacks and that can be computed now."""
        if sequence.num_in_flight and (sequence.needs_host or sequence.num_tokens >= sequence.max_tokens):
            return 0  # its token must be known first, or nothing may follow it
        return sequence.num_tokens - sequence.num_computed

    def _decode(self, sequence: Sequence, left: int) -> int:
        drafts = sequence.drafts[: left - 1]
        room = sequence.max_tokens - sequence.num_tokens - 1  # behind the token that the step yields for sure
        drafts = drafts[: max(0, room)]
        if drafts and not self._has_room(sequence, sequence.num_computed + 1 + len(drafts)):
            drafts = []  # nobody is sent away for a guess
        if not self._hold(sequence, sequence.num_computed + 1 + len(drafts)):
            return 0
        return self._take(sequence, 1 + len(drafts), 1 + len(drafts), tuple(drafts))

    def _prefill(self, sequence: Sequence, left: int) -> int:
        start, lacking = sequence.num_computed, sequence.num_tokens - sequence.num_computed
        count = min(lacking, left)
        if self.chunk is not None:
            prompt_left = sequence.num_prompt - start
            count = 1 if prompt_left <= 0 else min(prompt_left, self.chunk - start % self.chunk)
            if count > left and self._pieces:
                return 0
        if not self._hold(sequence, start + count):
            return 0
        return self._take(sequence, count, 1 if count == lacking else 0)

    def _take(self, sequence: Sequence, count: int, num_samples: int, drafts: tuple[int, ...] = ()) -> int:
        self._pieces[sequence] = Piece(sequence, sequence.num_computed, count, num_samples, drafts)
        return count

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence a seat and blocks for all its tokens."""
        if sequence.num_in_flight:
            return False  # it was preempted while a step computes its next token: that one must be known first
        while len(self.running) >= self.max_sequences or not self._has_blocks(sequence):
            if not self._send_away_for(sequence):
                return False
        self.waiting.remove(sequence)
        shared, num_computed = self._found(sequence)
        self.pool.share(shared)
        missing = self._num_blocks(sequence.num_tokens) - len(shared)
        sequence.blocks = shared + self.pool.allocate(missing, after=shared[-1] if shared else NULL_BLOCK)
        sequence.num_computed = num_computed
        sequence.num_named = min(len(shared), num_computed // self.block_size)
        if not sequence.num_preempted:
            sequence.num_cached = num_computed
            self.num_prompt_tokens += sequence.num_prompt
            self.num_cached_tokens += num_computed
        sequence.slot = self._slots.pop()
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        return True

    def _found(self, sequence: Sequence) -> tuple[list[int], int]:
        """Blocks that hold its first tokens already, and how many tokens these are; the last one is always computed
        anew, for what follows it."""
        parent = sequence.parent
        if (
            parent is not None
            and self.chunk is None
            and parent.status is Status.RUNNING
            and parent.num_computed >= sequence.num_prompt
            and len(sequence.tokens) == sequence.num_prompt
        ):
            return parent.blocks[: self._num_blocks(sequence.num_prompt)], sequence.num_prompt - 1
        if not self.prefix_cache:
            return [], 0
        whole = (sequence.num_tokens - 1) // self.block_size
        blocks = self.pool.find(sequence.names(whole))
        if self.chunk is not None:
            del blocks[len(blocks) // (self.chunk // self.block_size) * (self.chunk // self.block_size) :]
        return blocks, len(blocks) * self.block_size

    def _has_blocks(self, sequence: Sequence) -> bool:
        shared, _ = self._found(sequence)
        wanted = self._num_blocks(sequence.num_tokens) - len(shared) + self.pool.num_cached(shared)
        # Each that runs may want its next block soon, and should get it without sending anybody away.
        return wanted + len(self.running) <= self.pool.num_free or (not self.running and wanted <= self.pool.num_free)

    def _send_away_for(self, sequence: Sequence) -> bool:
        """Preempt somebody less urgent than a waiting sequence, where there is one and it would help."""
        priority = sequence.request.priority
        lower = [each for each in self.running if each.request.priority < priority]
        if not lower:
            return False
        victim = self._least_urgent(lower)
        self._preempt(victim)
        return True

    def _is_stuck(self) -> bool:
        """Whether all that run wait for one that waits for room: beams for another beam of theirs."""
        return (
            not self._pieces
            and bool(self.running)
            and not any(each.num_in_flight or self._lacking(each) for each in self.running)
        )

    # Blocks

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _missing(self, sequence: Sequence, end: int) -> tuple[int, bool]:
        """Blocks to allocate so that positions up to `end` can be written, and whether the first one written is
        another's too and must be copied."""
        first = sequence.num_computed // self.block_size
        is_shared = first < len(sequence.blocks) and self.pool.references(sequence.blocks[first]) > 1
        return max(0, self._num_blocks(end) - len(sequence.blocks)), is_shared

    def _has_room(self, sequence: Sequence, end: int) -> bool:
        missing, is_shared = self._missing(sequence, end)
        return missing + is_shared <= self.pool.num_free

    def _hold(self, sequence: Sequence, end: int) -> bool:
        """Have blocks to write positions up to `end`, by sending others away where there is no other way; False
        where it was this sequence that had to go."""
        missing, is_shared = self._missing(sequence, end)
        while missing + is_shared > self.pool.num_free:
            victim = self._least_urgent(self.running)
            self._preempt(victim)
            if victim is sequence:
                return False
            missing, is_shared = self._missing(sequence, end)
        if is_shared:
            index = sequence.num_computed // self.block_size
            old, (new,) = sequence.blocks[index], self.pool.allocate(1)
            self._copies[sequence] = old, new
            sequence.blocks[index] = new
            self.pool.free((old,))
        if missing:
            last = sequence.blocks[-1] if sequence.blocks else NULL_BLOCK
            sequence.blocks += self.pool.allocate(missing, after=last)
        return True

    def _least_urgent(self, sequences: list[Sequence]) -> Sequence:
        return max(sequences, key=lambda each: (-each.request.priority, each.arrival, each.choice))

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._let_go(sequence)
        self._pieces.pop(sequence, None)
        self._copies.pop(sequence, None)
        sequence.num_preempted += 1
        sequence.drafts = []
        self.num_preemptions += 1
        self.add(sequence)

    def _let_go(self, sequence: Sequence) -> None:
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = sequence.num_named = 0
        self._slots.append(sequence.slot)
        sequence.slot = -1

    def _name_blocks(self, sequence: Sequence) -> None:
        """Name the blocks that are full of known tokens."""
        if not self.prefix_cache or sequence.status is not Status.RUNNING:
            return
        num_tokens = min(sequence.num_computed, len(sequence.tokens))
        if self.chunk is not None:
            num_tokens = min(num_tokens, sequence.num_prompt // self.chunk * self.chunk)
        full = num_tokens // self.block_size
        if full > sequence.num_named:
            names = sequence.names(full)
            for index in range(sequence.num_named, full):
                self.pool.name(sequence.blocks[index], names[index])
            sequence.num_named = full

    def _close(self) -> Plan | None:
        """The plan as it is now, counted as computed: the device runs steps in the order in which they are launched."""
        pieces = sorted(self._pieces.values(), key=lambda piece: piece.count > 1)
        copies = tuple(self._copies.values())
        self._pieces, self._copies = {}, {}
        if not pieces:
            return None
        for piece in pieces:
            sequence = piece.sequence
            sequence.num_computed = piece.end
            sequence.num_in_flight += piece.num_samples > 0
            sequence.drafts = []
            self._name_blocks(sequence)
        return Plan(tuple(pieces), copies, sum(piece.count == 1 for piece in pieces))

    # Invariants

    def check(self) -> None:
        """Raise AssertionError unless everything adds up."""
        self.pool.check([sequence.blocks for sequence in self.running])
        for sequence in self.waiting:
            assert not sequence.blocks and sequence.slot == -1 and sequence.status is Status.WAITING, sequence
        slots = [sequence.slot for sequence in self.running]
        assert sorted(slots + self._slots) == list(range(self.max_sequences)), "a slot is lost"
        for sequence in self.running:
            assert sequence.status is Status.RUNNING
            assert sequence.num_computed <= len(sequence.blocks) * self.block_size, sequence
            assert len(sequence.blocks) <= self._num_blocks(max(sequence.max_tokens, sequence.num_tokens)), sequence
