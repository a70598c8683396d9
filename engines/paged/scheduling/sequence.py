"""One choice of one request on its way: what the scheduler and the engine know of it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from engines.paged.base.types import FinishReason, GenerateRequest
from engines.paged.cache.block_pool import block_hash, root_hash


class SequenceStatus(Enum):
    """Where a sequence is. Preempted ones wait again."""

    WAITING = "waiting"
    FETCHING = "fetching"  # its beginning is looked for outside, and it waits for that, not for room
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Tokens of a prompt and of one answer to it.

    `tokens` are those that the host knows. `num_in_flight` more are being sampled by a step that was launched and
    not yet read; `num_computed` counts positions whose keys and values are in the cache or on their way there.
    """

    __slots__ = (
        "_names",
        "arrival",
        "block_size",
        "blocks",
        "choice",
        "drafts",
        "finish_reason",
        "is_resting",
        "needs_host",
        "num_cached",
        "num_computed",
        "num_in_flight",
        "num_named",
        "num_preempted",
        "num_prompt",
        "parent",
        "prefetch",
        "request",
        "slot",
        "status",
        "tokens",
        "was_looked_up",
    )

    def __init__(self, request: GenerateRequest, choice: int, arrival: int, block_size: int) -> None:
        """`arrival` counts submissions: who came first goes first among equals."""
        self.request = request
        self.choice = choice
        self.arrival = arrival
        self.block_size = block_size
        self.tokens = list(request.prompt)
        self.num_prompt = len(self.tokens)
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.blocks: list[int] = []
        self.num_computed = 0
        self.num_in_flight = 0
        self.num_named = 0  # blocks at its front that have been named in the pool
        self.num_cached = 0  # tokens of the prompt that needed no prefill
        self.num_preempted = 0
        self.drafts: list[int] = []  # guesses of what comes next, for the next step to verify
        self.slot = -1  # of the per-sequence state on the device, while running
        # Whether the next step needs this one's token on the host (a grammar, guesses): then nothing runs ahead.
        self.needs_host = False
        # Whether it has told what may follow, and goes on once others have (beams): sent away, it needs no seat.
        self.is_resting = False
        self.was_looked_up = False  # outside, since it waits
        self.prefetch: Any = None  # what was asked outside before its turn
        self.parent: Sequence | None = None  # whose prompt's blocks can be shared: another choice of the request
        self._names = [root_hash(f"{request.adapter or ''}\0{request.cache_salt}")]

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.request.id}/{self.choice}: {self.status.value}, {self.num_computed} of {self.num_tokens} "
            f"tokens computed, {len(self.blocks)} blocks>"
        )

    @property
    def num_tokens(self) -> int:
        """Those in flight included."""
        return len(self.tokens) + self.num_in_flight

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def scores_prompt(self) -> bool:
        """Whether the log probabilities of its prompt are yet to be told: then all of it is computed."""
        is_requested = self.request.params.prompt_logprobs is not None
        return is_requested and not self.choice and len(self.tokens) == self.num_prompt

    @property
    def max_tokens(self) -> int:
        """How long it may become, prompt and answer."""
        return self.num_prompt + self.request.params.max_tokens

    def names(self, num_blocks: int) -> list[bytes]:
        """The names of its first blocks; all their tokens must be known."""
        names, size = self._names, self.block_size
        while len(names) <= num_blocks:
            begin = (len(names) - 1) * size
            names.append(block_hash(names[-1], self.tokens[begin : begin + size]))
        return names[1 : num_blocks + 1]

    def rewrite(self, tokens: list[int]) -> None:
        """Give it other tokens behind its prompt, as a beam that goes on from another."""
        kept = 0
        for mine, other in zip(self.tokens, tokens, strict=False):
            if mine != other:
                break
            kept += 1
        self.tokens = tokens
        del self._names[kept // self.block_size + 1 :]


class WaitingQueue:
    """By priority, then by arrival: who was preempted stands where it stood before."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Sequence]] = []
        self._members: set[Sequence] = set()
        self._pushed: set[Sequence] = set()  # whoever is in the heap: some have left the line since

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:  # in no particular order
        return iter(self._members)

    def add(self, sequence: Sequence) -> None:
        self._members.add(sequence)
        if sequence not in self._pushed:
            self._pushed.add(sequence)
            heapq.heappush(self._heap, (-sequence.request.priority, sequence.arrival, sequence.choice, sequence))

    def remove(self, sequence: Sequence) -> None:
        """One that does not wait any more; it need not be at the front."""
        self._members.discard(sequence)
        while self._heap and self._heap[0][3] not in self._members:
            self._pushed.discard(heapq.heappop(self._heap)[3])

    @property
    def first(self) -> Sequence | None:
        return self._heap[0][3] if self._heap else None


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Rows of one sequence: positions start .. start + count - 1. The last `num_samples` of them yield tokens; of
    several, all but the first row are guesses (`drafts`) that the tokens before them verify."""

    sequence: Sequence
    start: int
    count: int
    num_samples: int
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """Pieces of one row come first. `copies`: blocks to copy before anything is computed, (from, to)."""

    chunks: tuple[ScheduledChunk, ...]
    copies: tuple[tuple[int, int], ...]

    @property
    def num_rows(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def num_decoding(self) -> int:
        """Sequences that decode, guesses or not."""
        return sum(chunk.count == 1 + len(chunk.drafts) for chunk in self.chunks)

    @property
    def num_prefill_rows(self) -> int:
        return sum(chunk.count for chunk in self.chunks if chunk.count > 1 + len(chunk.drafts))
