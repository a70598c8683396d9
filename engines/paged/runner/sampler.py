"""What sampling needs of each sequence, put together for the rows of a step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

import torch

from engines.paged.model.adapters import Adapter, AdapterRows
from engines.paged.ops.contract import SamplingBatch
from engines.paged.scheduling.plan import Piece
from engines.paged.scheduling.sequence import Sequence


class Sampler:
    """Seeds, and grammars, by sequence."""

    def __init__(self, device: torch.device, adapters: Mapping[str, Adapter]) -> None:
        self._device = device
        self._adapters = adapters
        self._seeds: dict[Sequence, int] = {}

    def admit(self, sequence: Sequence, seed: int, matcher: Any | None) -> None:
        self._seeds[sequence] = seed - (1 << 64) if seed >> 63 else seed

    def release(self, sequence: Sequence) -> None:
        self._seeds.pop(sequence, None)

    def batch(self, pieces: Many[Piece]) -> SamplingBatch:
        """How the sampled rows of these pieces are sampled, in their order."""
        rows = [(piece, piece.end - piece.num_samples + i + 1) for piece in pieces for i in range(piece.num_samples)]
        return self._batch(rows)

    def guesses(self, pieces: Many[Piece], step: int) -> SamplingBatch:
        return self._batch([(piece, piece.start + step + 1) for piece in pieces])

    def _batch(self, rows: list[tuple[Piece, int]]) -> SamplingBatch:
        params = [piece.sequence.request.params for piece, _ in rows]
        temperature = [0.0 if p.beam_width > 1 else p.temperature for p in params]
        f, d = torch.float32, self._device
        return SamplingBatch(
            temperature=torch.tensor(temperature, dtype=f, device=d),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int32, device=d),
            top_p=torch.tensor([p.top_p for p in params], dtype=f, device=d),
            min_p=torch.tensor([p.min_p for p in params], dtype=f, device=d),
            seeds=torch.tensor([self._seeds[piece.sequence] for piece, _ in rows], dtype=torch.int64, device=d),
            positions=torch.tensor([position for _, position in rows], dtype=torch.int64, device=d),
            is_greedy=not any(temperature),
            is_unfiltered=all(not p.top_k and p.top_p >= 1 and p.min_p <= 0 for p in params),
            needs_logprobs=any(p.needs_logprobs for p in params),
        )

    def count(self, pieces: Many[Piece], tokens: torch.Tensor) -> None:
        pass

    def adapters(self, pieces: Many[Piece]) -> AdapterRows | None:
        """Which rows of a step have which adapter."""
        if not self._adapters:
            return None
        rows: dict[str, list[int]] = {}
        begin = 0
        for piece in pieces:
            name = piece.sequence.request.adapter
            if name is not None:
                rows.setdefault(name, []).extend(range(begin, begin + piece.count))
            begin += piece.count
        if not rows:
            return None
        return AdapterRows(
            tuple(
                (
                    self._adapters[name],
                    None if len(ids) == begin else torch.tensor(ids, dtype=torch.int64, device=self._device),
                )
                for name, ids in rows.items()
            )
        )
