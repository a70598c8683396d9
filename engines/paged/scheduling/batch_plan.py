"""What one step computes."""

from __future__ import annotations

from dataclasses import dataclass

from engines.paged.scheduling.sequence import Sequence


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

    pieces: tuple[ScheduledChunk, ...]
    copies: tuple[tuple[int, int], ...]

    @property
    def num_rows(self) -> int:
        return sum(piece.count for piece in self.pieces)

    @property
    def num_decoding(self) -> int:
        """Sequences that decode, guesses or not."""
        return sum(piece.count == 1 + len(piece.drafts) for piece in self.pieces)

    @property
    def num_prefill_rows(self) -> int:
        return sum(piece.count for piece in self.pieces if piece.count > 1 + len(piece.drafts))
