"""Sequences, the queue that they wait in, and the steps that compute them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from engines.paged.base.types import FinishReason, GenerateRequest
from engines.paged.cache.block_pool import block_hash, root_hash

if TYPE_CHECKING:  # no torch here
    from engines.paged.sampling.sequence_sampling import SequenceSampling


class SequenceStatus(Enum):
    """Preempted sequences wait again."""

    WAITING = "waiting"
    FETCHING = "fetching"  # its beginning is looked up in the store
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, repr=False, slots=True)
class Sequence:
    """The tokens of a prompt and of one choice.

    `tokens` are known to the host. `num_in_flight` more are being sampled by a step that is launched and not yet read.
    `num_computed` counts positions whose keys and values are in the cache or will be after the launched steps.
    """

    request: GenerateRequest
    choice: int
    arrival: int  # counts submissions: among equals the first goes first
    block_size: int
    tokens: list[int] = field(init=False)
    num_prompt: int = field(init=False)
    sampling: SequenceSampling = field(init=False)  # set before it is scheduled
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_in_flight: int = 0
    num_named: int = 0  # first blocks that are named in the pool
    num_cached: int = 0  # prompt tokens that needed no prefill
    num_preempted: int = 0
    drafts: list[int] = field(default_factory=list)  # for the next step to verify
    slot: int = -1  # of its state on the device, while running
    # Whether the next step needs the last token on the host (a grammar, drafts): no step is launched ahead then.
    needs_host: bool = False
    # Whether it waits for the other beams of its request: it needs no seat then.
    is_resting: bool = False
    was_looked_up: bool = False  # in the store, since it waits
    prefetch: Any = None  # the look-up made before it was scheduled
    parent: Sequence | None = None  # another choice, whose prompt blocks can be shared
    _names: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.num_prompt = len(self.tokens)
        self._names = [root_hash(f"{self.request.adapter or ''}\0{self.request.cache_salt}")]

    @property
    def place(self) -> tuple[int, int, int]:
        """By urgency: by priority, then by arrival."""
        return -self.request.priority, self.arrival, self.choice

    @property
    def num_tokens(self) -> int:
        """Tokens in flight included."""
        return len(self.tokens) + self.num_in_flight

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of its prompt are still due: all of it is computed then."""
        is_requested = self.request.params.prompt_logprobs is not None
        return is_requested and not self.choice and len(self.tokens) == self.num_prompt

    @property
    def max_tokens(self) -> int:
        """Length limit of prompt and answer."""
        return self.num_prompt + self.request.params.max_tokens

    def names(self, num_blocks: int) -> list[bytes]:
        """The names of its first blocks; all their tokens must be known."""
        names, size = self._names, self.block_size
        while len(names) <= num_blocks:
            begin = (len(names) - 1) * size
            names.append(block_hash(names[-1], self.tokens[begin : begin + size]))
        return names[1 : num_blocks + 1]

    def rewrite(self, tokens: list[int]) -> None:
        """Replace the tokens of its answer, for a beam that continues from another."""
        num_equal = 0
        for mine, other in zip(self.tokens, tokens, strict=False):
            if mine != other:
                break
            num_equal += 1
        self.tokens = tokens
        del self._names[num_equal // self.block_size + 1 :]


class WaitingQueue:
    """Waiting sequences, the most urgent first: a preempted one returns to its place."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        if sequence not in self._sequences:
            insort(self._sequences, sequence, key=lambda each: each.place)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence at any place, if it is there."""
        with suppress(ValueError):
            self._sequences.remove(sequence)

    @property
    def first(self) -> Sequence | None:
        return self._sequences[0] if self._sequences else None


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Rows of one sequence: positions start .. start + count - 1. The last `num_samples` of them yield tokens; of
    several, all but the first row are `drafts` that the tokens before them verify."""

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
    """One step. Chunks of one row come first. `copies`: blocks to copy before anything is computed, (from, to)."""

    chunks: tuple[ScheduledChunk, ...]
    copies: tuple[tuple[int, int], ...]

    @property
    def num_rows(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def num_decoding(self) -> int:
        """Sequences that decode, with drafts or without."""
        return sum(chunk.count == 1 + len(chunk.drafts) for chunk in self.chunks)

    @property
    def num_prefill_rows(self) -> int:
        return sum(chunk.count for chunk in self.chunks if chunk.count > 1 + len(chunk.drafts))
