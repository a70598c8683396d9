"""Sampling on the device, so that a step can be launched before the previous one is read."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.paged.ops.interface import SamplingBatch
from engines.paged.ops.metal.kernels import KernelFamily, Library, check

# Flags of the kernel `adjust`, as in sample.metal.
MASK, REPETITION, PRESENCE, FREQUENCY, TEMPERATURE, NOISE = (1 << bit for bit in range(6))
ADJUST_IDS, ADJUST_THREADS = 4, 256  # ids a thread, threads a group
SAMPLE_THREADS = 1024


class SamplingOps(KernelFamily):
    """One kernel where all rows are greedy and unmodified; another before it where logits are adjusted or noise is
    added to all of them; a bias comes between the two halves of that one."""

    def sample(self, logits: Tensor, sampling: SamplingBatch) -> tuple[Tensor, Tensor]:
        check("logits", logits, torch.float32)
        library = self.kernels.load("sample")
        m, vocabulary = logits.shape
        tokens, logprobs = self.new(m, dtype=torch.int32), self.new(m, dtype=torch.float32)
        library.run(
            "sample",
            (m,),
            SAMPLE_THREADS,
            *(tokens, logprobs, self._scores(library, logits, sampling), logits),
            *(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seeds, sampling.positions),
            *(not (sampling.is_greedy or sampling.is_unfiltered), sampling.needs_logprobs, vocabulary),
            *(_or(sampling.last_tokens, tokens), _or(sampling.seats, tokens), sampling.last_tokens is not None),
        )
        return tokens, logprobs

    def _scores(self, library: Library, logits: Tensor, sampling: SamplingBatch) -> Tensor:
        """The scores that tokens are chosen by; the logits themselves where nothing adjusts them."""
        flags, noise = _adjustments(sampling), 0
        if not sampling.is_greedy:  # filters need scores without noise: it is added to the few that remain
            noise = TEMPERATURE | NOISE if sampling.is_unfiltered else TEMPERATURE
        rows, ids, values = sampling.bias_rows, sampling.bias_ids, sampling.bias_values
        if rows is None or ids is None or values is None or not rows.shape[0]:
            return self._adjust(library, logits, sampling, flags | noise) if flags | noise else logits
        scores = self._adjust(library, logits, sampling, flags)
        entries, vocabulary = rows.shape[0], logits.shape[1]
        library.run("add_bias", (-(-entries // 64),), 64, scores, rows, ids, values, entries, vocabulary)
        return self._adjust(library, scores, sampling, noise) if noise else scores

    def _adjust(self, library: Library, logits: Tensor, sampling: SamplingBatch, flags: int) -> Tensor:
        scores = torch.empty_like(logits)
        m, vocabulary = logits.shape
        # A field that is None is not read, but a buffer must be bound.
        floats, counts, bytes_ = sampling.temperature, sampling.top_k, sampling.temperature.view(torch.uint8)
        library.run(
            "adjust",
            (-(-vocabulary // (ADJUST_IDS * ADJUST_THREADS)), m),
            ADJUST_THREADS,
            *(scores, logits, _or(sampling.allowed, counts)),
            *(_or(each, floats) for each in (sampling.repetition, sampling.presence, sampling.frequency)),
            *(_or(sampling.seen_in_prompt, bytes_), _or(sampling.output_counts, counts)),
            *(floats, sampling.seeds, sampling.positions, flags, vocabulary),
        )
        return scores


def _adjustments(sampling: SamplingBatch) -> int:
    """Flags of the adjustments of logits."""
    flags = MASK if sampling.allowed is not None else 0
    if sampling.output_counts is not None:
        if sampling.repetition is not None and sampling.seen_in_prompt is not None:
            flags |= REPETITION
        flags |= PRESENCE if sampling.presence is not None else 0
        flags |= FREQUENCY if sampling.frequency is not None else 0
    return flags


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor
