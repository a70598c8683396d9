"""Runs planned steps on the device, and reads their tokens later.

Only one thread launches steps and touches the device: two would crash Metal (ENGINE.md B2).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engines.paged.base.options import EngineOptions
from engines.paged.base.transfer import HostCopy
from engines.paged.base.types import TokenLogprob
from engines.paged.cache.memory import KVCache
from engines.paged.model.adapters import Adapter, adapter_rows
from engines.paged.model.decoder import Decoder
from engines.paged.ops.reference import Ops
from engines.paged.ops.reference.sampling import top_logprobs
from engines.paged.runner.batch import BatchBuilder, StepInputs
from engines.paged.runner.draft_model import DraftModel
from engines.paged.sampling.batch import SampledRows, SamplingBatches
from engines.paged.scheduling.sequence import ScheduledChunk, SchedulerOutput


@dataclass(slots=True)
class Sampled:
    """The result of one chunk: tokens, the last of them not a draft; none while its prompt is incomplete."""

    tokens: list[int]
    logprobs: list[float]
    top: list[tuple[tuple[int, float], ...]]  # by token; empty where not requested
    prompt: list[TokenLogprob] = field(default_factory=list)  # of its prompt rows, where requested


@dataclass(slots=True)
class Launched:
    """A step that the device computes."""

    plan: SchedulerOutput
    drafts: list[tuple[int, ...]]  # by chunk
    copy: HostCopy  # tokens, log probabilities and the likeliest ones; empty where no row is sampled
    prompts: dict[int, list[TokenLogprob]]  # by index of the chunk
    draft_seconds: float = 0.0  # of a draft model, for one token
    sources: list[Tensor] = field(default_factory=list)  # host memory that the device reads until `copy` is complete


class Runner:
    """The model, its cache, and the per-sequence state on the device."""

    def __init__(
        self,
        ops: Ops,
        decoder: Decoder,
        cache: KVCache,
        batches: SamplingBatches,
        adapters: Mapping[str, Adapter],
        options: EngineOptions,
        draft: DraftModel | None,
    ) -> None:
        """`adapters` by the names that requests give."""
        self._ops = ops
        self._decoder = decoder
        self._cache = cache
        self._batches = batches
        self._adapters = adapters
        self._deterministic = options.deterministic
        self._draft = draft
        self._last_tokens = torch.zeros(options.max_sequences + 1, dtype=torch.int32, device=ops.device)
        self._builder = BatchBuilder(ops.staging, options.block_size, self._last_tokens)

    @torch.inference_mode()
    def launch(self, plan: SchedulerOutput) -> Launched:
        """Launch a step."""
        for copies in _apart(plan.copies):
            pairs = self._ops.staging.put(copies, torch.int64)
            self._ops.copy_blocks(self._cache.keys, self._cache.values, pairs)
            if self._draft is not None:
                self._draft.copy_blocks(pairs)
        chunks = plan.chunks
        if self._draft is not None:
            chunks = self._draft.draft(chunks, self._batches, self._builder)
        prompts: dict[int, list[TokenLogprob]] = {}
        scores, seats = self._decode(chunks) if self._is_steady(chunks) else self._compute(chunks, prompts)
        yielded: tuple[Tensor, ...] = ()
        if scores is not None:
            sampled = [chunk for chunk in chunks if chunk.num_samples]
            num_top = max(chunk.sequence.request.params.num_likeliest for chunk in sampled)
            likeliest = top_logprobs(scores, num_top) if num_top else ()
            entries = [
                SampledRows(chunk.sequence.sampling, chunk.end - chunk.num_samples + 1, chunk.drafts)
                for chunk in sampled
            ]
            sampling = self._batches.build(entries)
            sampling.last_tokens, sampling.seats = self._last_tokens, seats
            tokens, logprobs = self._ops.sample(scores, sampling)
            self._batches.count(entries, tokens)
            yielded = tokens, logprobs, *likeliest
        copy = HostCopy(self._ops.device, *yielded)
        draft_seconds = 0.0 if self._draft is None else self._draft.draft_seconds
        sources = self._ops.staging.take_sources()
        return Launched(plan, [chunk.drafts for chunk in chunks], copy, prompts, draft_seconds, sources)

    def collect(self, launched: Launched) -> list[Sampled]:
        """The results of a step by chunk. Waits until the device is done, also where nothing is sampled: steps that
        only read prompts must not pile up."""
        results = []
        values = [tensor.tolist() for tensor in launched.copy.values()]
        launched.sources.clear()
        if not values:
            return [Sampled([], [], [], launched.prompts.get(i, [])) for i in range(len(launched.plan.chunks))]
        tokens, logprobs, *likeliest = values
        row = 0
        for index, (chunk, drafts) in enumerate(zip(launched.plan.chunks, launched.drafts, strict=True)):
            end = row + chunk.num_samples
            yielded = tokens[row:end]
            for right, guess in enumerate(drafts):
                if yielded[right] != guess:
                    del yielded[right + 1 :]
                    break
            num_likeliest = chunk.sequence.request.params.num_likeliest
            top = [
                tuple(zip(likeliest[0][i][:num_likeliest], likeliest[1][i][:num_likeliest], strict=True))
                if num_likeliest
                else ()
                for i in range(row, row + len(yielded))
            ]
            results.append(Sampled(yielded, logprobs[row : row + len(yielded)], top, launched.prompts.get(index, [])))
            row = end
        return results

    def drain(self) -> None:
        """Wait until the device has done all its work: after a failure, before the memory that it uses is released."""
        with suppress(Exception):  # the same failure may be raised again
            self._ops.synchronize()
        self._ops.staging.take_sources()

    def _is_steady(self, chunks: Many[ScheduledChunk]) -> bool:
        """Whether each chunk is a sequence's next token and nothing but the model is computed: such steps can be
        replayed."""
        return (
            self._draft is None
            and not self._deterministic
            and self._ops.can_replay
            and all(
                chunk.count == chunk.num_samples == 1
                and chunk.sequence.request.adapter is None
                and chunk.sequence.request.params.prompt_logprobs is None
                for chunk in chunks
            )
        )

    def _decode(self, chunks: Many[ScheduledChunk]) -> tuple[Tensor | None, Tensor | None]:
        """Logits of all rows of a steady step, and the seats of their tokens."""
        (batch, _, seats), layout = self._builder.build_fixed(chunks)
        keys, values = self._cache.keys, self._cache.values
        layout_key = id(self._decoder), layout
        return self._ops.replay(layout_key, batch, lambda: self._decoder.next_logits(batch, keys, values)), seats

    def _compute(
        self, chunks: Many[ScheduledChunk], prompts: dict[int, list[TokenLogprob]]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits of the sampled rows, and the seats of their tokens; None where no row is sampled."""
        parts = [(chunk,) for chunk in chunks] if self._deterministic else [chunks]
        logits, seats = [], []
        for first, part in enumerate(parts):
            inputs = self._builder.build(part)
            hidden = self._forward(inputs, part, prompts, first)
            if hidden is not None:
                logits.append(self._decoder.logits(hidden))
                seats.append(inputs.seats)
        if not logits:
            return None, None
        return (logits[0], seats[0]) if len(logits) == 1 else (torch.cat(logits), torch.cat(seats))

    def _forward(
        self, inputs: StepInputs, chunks: Many[ScheduledChunk], prompts: dict[int, list[TokenLogprob]], first: int
    ) -> Tensor | None:
        """Compute the rows of these chunks: the hidden states of the sampled ones, None where there are none."""
        batch, sampled_rows, seats = inputs
        if self._adapters:
            names = [chunk.sequence.request.adapter for chunk in chunks]
            adapters = [None if name is None else self._adapters[name] for name in names]
            batch.adapters = adapter_rows(adapters, batch.query_lens_list, self._ops.staging)
        batch.is_reproducible = self._deterministic
        hidden = self._decoder.forward(batch, self._cache.keys, self._cache.values)
        if self._draft is not None:
            self._draft.follow(batch)
        if any(chunk.sequence.request.params.prompt_logprobs is not None for chunk in chunks):
            prompts |= score_prompts(self._decoder, hidden, chunks, first)
        if not seats.shape[0]:
            return None
        return hidden if sampled_rows is None else hidden.index_select(0, sampled_rows)


def _apart(copies: Many[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Copies in their order, in parts in which no block is both read and written: a device copies a part at once."""
    parts: list[list[tuple[int, int]]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, target in copies:
        if not parts or source in written or target in read:
            parts.append([])
            read, written = set(), set()
        parts[-1].append((source, target))
        read.add(source)
        written.add(target)
    return parts


_ROWS = 64  # logits of a whole prompt would take hundreds of megabytes


def score_prompts(
    decoder: Decoder, hidden: Tensor, chunks: Many[ScheduledChunk], first: int
) -> dict[int, list[TokenLogprob]]:
    """Log probabilities of the prompt's tokens, by index of the chunk (counted from `first`). hidden [n, HID]."""
    scores: dict[int, list[TokenLogprob]] = {}
    begin = 0
    for index, chunk in enumerate(chunks, first):
        params, sequence = chunk.sequence.request.params, chunk.sequence
        count = min(chunk.end, sequence.num_prompt - 1) - chunk.start  # rows followed by a prompt token
        if params.prompt_logprobs is not None and count > 0 and sequence.choice == 0:
            logprobs: list[TokenLogprob] = []
            for start in range(0, count, _ROWS):
                size = min(_ROWS, count - start)
                rows = hidden[begin + start : begin + start + size]
                position = chunk.start + start
                tokens = sequence.tokens[position + 1 :][:size]
                logprobs += _scores(decoder.logits(rows), tokens, params.prompt_logprobs)
            scores[index] = logprobs
        begin += chunk.count
    return scores


def _scores(logits: Tensor, tokens: list[int], num_top: int) -> list[TokenLogprob]:
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    values, ids = logprobs.topk(num_top) if num_top else (logprobs[:, :0], logprobs[:, :0].long())
    tops = [tuple(zip(row_ids, row, strict=True)) for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)]
    return [TokenLogprob(*each) for each in zip(tokens, own, tops, strict=True)]
