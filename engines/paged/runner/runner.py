"""Steps on the device: a plan becomes kernels, and tokens that can be read later.

One thread launches steps, and only that one touches the device: two would crash Metal (ENGINE.md B2).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engines.paged.cache.kv_cache import KVCache
from engines.paged.model.decoder import Decoder
from engines.paged.ops.contract import Ops
from engines.paged.runner.batch import build_batch
from engines.paged.runner.drafting import DraftModel
from engines.paged.runner.prompt_scores import score_prompts
from engines.paged.runner.reading import HostCopy
from engines.paged.runner.sampler import Sampler
from engines.paged.sampling.reference import top_logprobs
from engines.paged.scheduling.plan import Piece, Plan
from engines.paged.values import TokenLogprob


@dataclass(slots=True)
class Sampled:
    """What one piece has yielded: tokens, the last of them not a guess; none where its prompt is not yet through."""

    tokens: list[int]
    logprobs: list[float]
    top: list[tuple[tuple[int, float], ...]]  # by token; empty tuples where none were asked for
    prompt: list[TokenLogprob] = field(default_factory=list)  # of the rows of its prompt, where asked for


@dataclass(slots=True)
class Launched:
    """A step that the device works on."""

    plan: Plan
    drafts: list[tuple[int, ...]]  # by piece
    copy: HostCopy | None  # tokens, log probabilities, and the likeliest ones; None where no row was sampled
    num_top: int
    prompts: dict[int, list[TokenLogprob]]  # by index of the piece
    guess_seconds: float = 0.0  # what a draft model takes for one guess


class Runner:
    """The model, its cache, and what each sequence has on the device."""

    def __init__(
        self,
        ops: Ops,
        decoder: Decoder,
        cache: KVCache,
        sampler: Sampler,
        *,
        block_size: int,
        max_sequences: int,
        deterministic: bool = False,
        draft: DraftModel | None = None,
    ) -> None:
        self._ops = ops
        self._decoder = decoder
        self._cache = cache
        self._sampler = sampler
        self._block_size = block_size
        self._deterministic = deterministic
        self._draft = draft
        self._last_tokens = torch.zeros(max_sequences, dtype=torch.int32, device=ops.device)

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Give the device a step."""
        for copies in _apart(plan.copies):
            pairs = torch.tensor(copies, dtype=torch.int64).to(self._ops.device)
            self._ops.copy_blocks(self._cache.keys, self._cache.values, pairs)
            if self._draft is not None:
                self._draft.copy_blocks(pairs)
        pieces = plan.pieces
        if self._draft is not None:
            pieces = self._draft.guess(pieces, self._sampler, self._last_tokens)
        prompts: dict[int, list[TokenLogprob]] = {}
        if self._deterministic:
            hidden = [
                rows for i, piece in enumerate(pieces) if (rows := self._forward((piece,), prompts, i)) is not None
            ]
            logits = [self._decoder.logits(rows) for rows in hidden]
            scores = torch.cat(logits) if logits else None
        else:
            rows = self._forward(pieces, prompts, 0)
            scores = None if rows is None else self._decoder.logits(rows)
        drafts = [piece.drafts for piece in pieces]
        if scores is None:
            return Launched(plan, drafts, None, 0, prompts, self._guess_seconds)
        sampled = [piece for piece in pieces if piece.num_samples]
        num_top = max(piece.sequence.request.params.num_likeliest for piece in sampled)
        likeliest = top_logprobs(scores, num_top) if num_top else ()
        asks = self._sampler.asks(sampled)
        tokens, logprobs = self._ops.sample(scores, self._sampler.batch(asks))
        self._sampler.count(asks, tokens)
        self._remember(sampled, tokens)
        copy = HostCopy(tokens, logprobs, *likeliest)
        return Launched(plan, drafts, copy, num_top, prompts, self._guess_seconds)

    @property
    def _guess_seconds(self) -> float:
        return 0.0 if self._draft is None else self._draft.guess_seconds

    def collect(self, launched: Launched) -> list[Sampled]:
        """What the step has yielded, by piece; waits for the device where it must."""
        results = []
        if launched.copy is None:
            return [Sampled([], [], [], launched.prompts.get(i, [])) for i in range(len(launched.plan.pieces))]
        tokens, logprobs, *likeliest = [tensor.tolist() for tensor in launched.copy.values()]
        row = 0
        for index, (piece, drafts) in enumerate(zip(launched.plan.pieces, launched.drafts, strict=True)):
            end = row + piece.num_samples
            yielded = tokens[row:end]
            for right, guess in enumerate(drafts):
                if yielded[right] != guess:
                    del yielded[right + 1 :]
                    break
            wanted = piece.sequence.request.params.num_likeliest
            top = [
                tuple(zip(likeliest[0][i][:wanted], likeliest[1][i][:wanted], strict=True)) if wanted else ()
                for i in range(row, row + len(yielded))
            ]
            results.append(Sampled(yielded, logprobs[row : row + len(yielded)], top, launched.prompts.get(index, [])))
            row = end
        return results

    def _forward(self, pieces: Many[Piece], prompts: dict[int, list[TokenLogprob]], first: int) -> Tensor | None:
        """Compute the rows of these pieces: the hidden states of those that are sampled, None where none is."""
        batch = build_batch(pieces, self._block_size, self._ops.device, self._last_tokens)
        batch.adapters = self._sampler.adapters(pieces)
        batch.is_reproducible = self._deterministic
        hidden = self._decoder.forward(batch, self._cache.keys, self._cache.values)
        if self._draft is not None:
            self._draft.follow(batch)
        if any(piece.sequence.request.params.prompt_logprobs is not None for piece in pieces):
            prompts |= score_prompts(self._decoder, hidden, pieces, first)
        rows: list[int] = []
        end = 0
        for piece in pieces:
            end += piece.count
            rows.extend(range(end - piece.num_samples, end))
        if len(rows) == hidden.shape[0]:
            return hidden
        if not rows:
            return None
        return hidden[torch.tensor(rows, device=hidden.device)]

    def _remember(self, sampled: Many[Piece], tokens: Tensor) -> None:
        """Keep each sequence's last token on the device, where the next step reads it. Those with guesses are read
        on the host first."""
        slots, rows, row = [], [], 0
        for piece in sampled:
            if piece.num_samples == 1:
                slots.append(piece.sequence.slot)
                rows.append(row)
            row += piece.num_samples
        if len(rows) == row:
            self._last_tokens[torch.tensor(slots, device=tokens.device)] = tokens
        elif rows:
            self._last_tokens[torch.tensor(slots, device=tokens.device)] = tokens[
                torch.tensor(rows, device=tokens.device)
            ]


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
