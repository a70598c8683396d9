"""Attention over pages by torch's scaled dot product; on MPS by plain matrix products.

    plan     once a step and window: groups of sequences, the cached blocks that they read, masks, and views of the
             blocks of decoding sequences whose blocks are neighbours, in all layers
    read     once a layer: a run of neighbouring blocks is read in place, other blocks are gathered into a buffer
    attend   one call of torch's kernel for each group of decoding sequences, one for each tile of a prefill
    scatter  results into the rows of the batch

The H / G query heads that share a key-value head go through the kernel as heads of a batch of G, over keys whose head
axis has stride 0: nothing is repeated in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engines.paged.ops.interface import Batch, LayerCache

# A decoding sequence gets a call of its own from here on: for shorter ones a further call (some 40 us) costs more than
# joining a group. What is gathered for one sequence stays in a core's cache until it is multiplied: 16 sequences of 208
# to 512 tokens took half the time of gathering them all first (measured, one thread).
ALONE_TOKENS = 128
# Tokens gathered for one call, for the same reason.
TOGETHER_TOKENS = 1024
# Decoding sequences are grouped while the longest is at most this many times the shortest, in blocks: padding is read
# and multiplied in vain.
PADDING_FACTOR = 1.5
# Prefill rows that are masked together. A tile reads keys up to its last row, so that smaller tiles skip more invisible
# keys; below 256 rows the kernel's own blocks are not full.
TILE_ROWS = 256


# scaled_dot_product_attention, or a function that computes the same of q, keys and values.
DotProduct = Callable[..., Tensor]
# A decoding sequence: its row, block ids, first visible token, and tokens.
DecodingRow = tuple[int, Sequence[int], int, int]


class DecodeAttention(Protocol):
    """Attends for sequences with one row each."""

    def plan(self, sequences: Sequence[DecodingRow]) -> Any:
        """Once a step."""
        ...

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, plan: Any, scale: float, out: Tensor) -> None:
        """Once a layer: the plan's rows of `out` [n, H, D]."""
        ...


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Query rows of one kernel call: `rows` of the batch, `keys` of the span, `mask` [rows, keys]."""

    rows: slice
    keys: slice
    mask: Tensor | None
    is_causal: bool = False


@dataclass(frozen=True, slots=True)
class SingleAttention:
    """One sequence: `count` tokens of its cache from `offset` on in its blocks, either `run` (from, to) or `ids`."""

    run: slice | None
    ids: Tensor | None  # [blocks] int64
    offset: int
    count: int
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, slots=True)
class GroupAttention:
    """Decoding sequences of about the same length."""

    rows: slice | Tensor
    ids: Tensor  # [s * blocks] int64
    num_sequences: int
    mask: Tensor  # [s, 1, 1, blocks * S] of T: 0, or -inf where the sequence has no such token
    hidden: Tensor  # indices of those slots over all sequences, int64: zeroed, as NaN would get past a mask


@dataclass(frozen=True, slots=True)
class ViewAttention:
    """Decoding sequences whose blocks are neighbours: their rows, and by layer and sequence views of the keys and
    values [1, G, tokens, D]."""

    rows: tuple[int, ...]
    keys: tuple[tuple[Tensor, ...], ...]
    values: tuple[tuple[Tensor, ...], ...]


@dataclass(frozen=True, slots=True)
class ReferenceAttentionPlan:
    together: tuple[GroupAttention, ...]
    alone: tuple[SingleAttention, ...]
    viewed: ViewAttention | None
    decoding: Any = None  # the decoder's plan for all decoding sequences


class PagedAttention:
    """Owns the buffer that blocks are gathered into, allocated once for all layers. `decoders` attend for decoding
    sequences instead of torch, each for one shape: query heads, key-value heads, their size, T."""

    def __init__(self, device: torch.device) -> None:
        self._dot_product: DotProduct = plain_attention if device.type == "mps" else scaled_dot_product_attention
        self._buffers: list[Tensor | None] = [None, None]
        self.decoders: dict[tuple[int, int, int, torch.dtype], DecodeAttention] = {}

    def __call__(self, q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
        decoder = self.decoders.get((q.shape[1], cache.keys.shape[2], q.shape[2], q.dtype)) if self.decoders else None
        key = f"attention {window} {decoder is not None}"
        plan = batch.scratch.get(key)
        if plan is None:
            block_size = cache.keys.shape[1]
            plan = make_plan(batch, window, block_size, q.dtype, decoder)
            batch.scratch[key] = plan
        if plan.viewed is not None and len(plan.viewed.rows) == q.shape[0]:
            return torch.cat(self._view_attention(q, plan.viewed, batch.layer, scale)).flatten(1)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if plan.decoding is not None:
            assert decoder is not None
            decoder(q, cache.keys, cache.values, plan.decoding, scale, out)
        for group in plan.together:
            self._decode(q, cache, group, scale, out)
        for sequence in plan.alone:
            self._attend(q, cache, sequence, scale, out)
        if plan.viewed is not None:
            views = self._view_attention(q, plan.viewed, batch.layer, scale)
            for row, attended in zip(plan.viewed.rows, views, strict=True):
                out[row] = attended.flatten(0, 2)
        return out.flatten(1)

    def _decode(self, q: Tensor, cache: LayerCache, group: GroupAttention, scale: float, out: Tensor) -> None:
        gathered = self._gather(cache, group.ids)
        for each in gathered if group.hidden.numel() else ():
            each.flatten(0, 1).index_fill_(0, group.hidden, 0.0)
        keys, values = (each.view(group.num_sequences, -1, *each.shape[-2:]).transpose(1, 2) for each in gathered)
        grouped = q[group.rows].view(group.num_sequences, keys.shape[1], -1, q.shape[2])  # [s, G, H / G, D]
        attended = self._dot_product(grouped, keys, values, attn_mask=group.mask, scale=scale)
        out[group.rows] = attended.flatten(1, 2)

    def _attend(self, q: Tensor, cache: LayerCache, sequence: SingleAttention, scale: float, out: Tensor) -> None:
        blocks: Sequence[Tensor] = cache
        if sequence.run is not None:
            blocks = [each[sequence.run] for each in cache]
        elif sequence.ids is not None:
            blocks = self._gather(cache, sequence.ids)
        seen = slice(sequence.offset, sequence.offset + sequence.count)
        keys, values = (each.flatten(0, 1)[seen] for each in blocks)
        for tile in sequence.tiles:
            out[tile.rows] = self._attend_tile(q[tile.rows], keys[tile.keys], values[tile.keys], tile, scale)

    def _gather(self, cache: LayerCache, ids: Tensor) -> list[Tensor]:
        """Both caches' blocks [blocks, S, G, D], in memory that the next call overwrites."""
        gathered = []
        for which, each in enumerate(cache):
            elements = ids.numel() * each[0].numel()
            buffer = self._buffers[which]
            if buffer is None or buffer.numel() < elements or buffer.dtype != each.dtype:
                buffer = self._buffers[which] = each.new_empty(elements)
            into = buffer[:elements].view(ids.numel(), *each.shape[1:])
            gathered.append(torch.index_select(each, 0, ids, out=into))
        return gathered

    def _view_attention(self, q: Tensor, viewed: ViewAttention, layer: int, scale: float) -> list[Tensor]:
        """[1, G, H / G, D] for each of the rows, without further tensors."""
        keys, values = viewed.keys[layer], viewed.values[layer]
        queries = q.view(q.shape[0], 1, keys[0].shape[1], -1, q.shape[2]).unbind(0)
        return [
            self._dot_product(queries[row], keys[at], values[at], scale=scale) for at, row in enumerate(viewed.rows)
        ]

    def _attend_tile(self, q: Tensor, keys: Tensor, values: Tensor, tile: QueryTile, scale: float) -> Tensor:
        """q [rows, H, D] over keys and values [tokens, G, D] -> [rows, H, D]."""
        groups = keys.shape[1]
        shared = q.shape[1] // groups
        if q.shape[0] == 1:
            one = q.view(1, groups, shared, -1)
            keys, values = (each.transpose(0, 1).unsqueeze(0) for each in (keys, values))
            return self._dot_product(one, keys, values, scale=scale).flatten(1, 2)
        by_head = q.view(-1, groups, shared, q.shape[2]).permute(1, 2, 0, 3)  # [G, H / G, rows, D]
        keys, values = (each.transpose(0, 1).unsqueeze(1).expand(-1, shared, -1, -1) for each in (keys, values))
        attended = self._dot_product(by_head, keys, values, attn_mask=tile.mask, is_causal=tile.is_causal, scale=scale)
        return attended.permute(2, 0, 1, 3).flatten(1, 2)


def make_plan(
    batch: Batch, window: int, block_size: int, dtype: torch.dtype, decoder: DecodeAttention | None
) -> ReferenceAttentionPlan:
    """Plan a batch as the module describes. A decoder takes the decoding sequences."""
    device = batch.tokens.device
    alone, to_gather = [], []
    decoding: list[DecodingRow] = []
    viewed: list[tuple[int, int, int]] = []  # row, first slot, slots' end
    row = 0
    for sequence, (rows, tokens) in enumerate(zip(batch.query_lens_list, batch.context_lens_list, strict=True)):
        seen = max(0, tokens - rows - window + 1) if window else 0  # the first visible token of any row
        if rows == 1 and decoder is not None:
            decoding.append((row, batch.block_tables_list[sequence][: -(-tokens // block_size)], seen, tokens))
            row += 1
            continue
        table = batch.block_tables_list[sequence][seen // block_size : -(-tokens // block_size)]
        is_run = all(block == table[0] + at for at, block in enumerate(table))
        if rows == 1 and is_run and batch.caches is not None:
            first = table[0] * block_size + seen % block_size
            viewed.append((row, first, first + tokens - seen))
        elif rows == 1 and not batch.is_reproducible and tokens - seen < ALONE_TOKENS:
            to_gather.append((table, row, seen % block_size, seen % block_size + tokens - seen))
        else:
            run = slice(table[0], table[-1] + 1) if is_run else None
            ids = None if is_run else torch.tensor(table, dtype=torch.int64, device=device)
            tiles = _tiles(row, rows, tokens, seen, window, dtype, device)
            alone.append(SingleAttention(run, ids, seen % block_size, tokens - seen, tiles))
        row += rows
    views = _views(batch.caches, viewed) if batch.caches is not None and viewed else None
    decode_plan = decoder.plan(decoding) if decoder is not None and decoding else None
    return ReferenceAttentionPlan(_groups(to_gather, block_size, dtype, device), tuple(alone), views, decode_plan)


def _views(caches: LayerCache, sequences: list[tuple[int, int, int]]) -> ViewAttention:
    """Sequences by row, first slot and slots' end."""
    both = []
    for each in caches:
        slots = each.flatten(1, 2)  # [L, blocks * S, G, D]
        by_sequence = [slots[:, first:end].transpose(1, 2).unsqueeze(1).unbind(0) for _, first, end in sequences]
        both.append(tuple(zip(*by_sequence, strict=True)))
    return ViewAttention(tuple(row for row, _, _ in sequences), *both)


def _tiles(
    row: int, rows: int, tokens: int, seen: int, window: int, dtype: torch.dtype, device: torch.device
) -> tuple[QueryTile, ...]:
    """The tiles of a sequence's `rows` rows from `row` on, whose keys are tokens `seen` .. `tokens`."""
    if rows == 1:
        return (QueryTile(slice(row, row + 1), slice(None), None),)
    first_position = tokens - rows
    if first_position == 0 and (not window or window >= tokens):
        return (QueryTile(slice(row, row + rows), slice(None), None, is_causal=True),)
    tiles = []
    for start in range(0, rows, TILE_ROWS):
        stop = min(start + TILE_ROWS, rows)
        first_key = max(seen, first_position + start - window + 1) if window else 0
        positions = torch.arange(first_position + start, first_position + stop, device=device).unsqueeze(1)
        keys = torch.arange(first_key, first_position + stop, device=device)
        hidden = keys > positions
        if window:
            hidden |= keys <= positions - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
        tiles.append(
            QueryTile(slice(row + start, row + stop), slice(first_key - seen, first_position + stop - seen), mask)
        )
    return tuple(tiles)


def _groups(
    decodes: list[tuple[Sequence[int], int, int, int]], block_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[GroupAttention, ...]:
    """Group sequences (blocks, row, first visible slot, slots' end) by length."""
    groups: list[list[tuple[Sequence[int], int, int, int]]] = []
    for decode in sorted(decodes, key=lambda decode: len(decode[0])):
        width = len(decode[0])
        fits = groups and (len(groups[-1]) + 1) * width * block_size <= TOGETHER_TOKENS
        if fits and width <= PADDING_FACTOR * len(groups[-1][0][0]):
            groups[-1].append(decode)
        else:
            groups.append([decode])
    return tuple(_together(group, block_size, dtype, device) for group in groups)


def _together(
    group: list[tuple[Sequence[int], int, int, int]], block_size: int, dtype: torch.dtype, device: torch.device
) -> GroupAttention:
    group = sorted(group, key=lambda decode: decode[1])
    width = max(len(blocks) for blocks, *_ in group)
    ids = torch.tensor([[*blocks, *[0] * (width - len(blocks))] for blocks, *_ in group], device=device)
    first, end = (torch.tensor([decode[at] for decode in group], device=device).unsqueeze(1) for at in (2, 3))
    slots = torch.arange(width * block_size, device=device)
    hidden = (slots < first) | (slots >= end)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    rows = [decode[1] for decode in group]
    is_run = rows[-1] - rows[0] + 1 == len(rows)
    return GroupAttention(
        slice(rows[0], rows[-1] + 1) if is_run else torch.tensor(rows, device=device),
        ids.flatten(),
        len(group),
        mask[:, None, None],
        hidden.flatten().nonzero().flatten(),
    )


# Prompt rows whose scores are computed at once.
_PLAIN_TILE_ROWS = 256


def plain_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """The result of scaled_dot_product_attention by two matrix products and a softmax, in float32 for 16-bit arguments.

    torch's own has been silently wrong on MPS in several releases: leaking causal masks (pytorch#195910), reads out of
    bounds (#169222), strided keys (#163597, #163598), broadcast ones (#189631).

    q [a, b, rows, D], keys and values [a, b, tokens, D], with stride 0 over b where all of b share them; attn_mask [..,
    rows or 1, tokens] is added. Causal: row i sees tokens 0 .. i.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    shared = keys.stride(1) == 0 and values.stride(1) == 0
    keys, values = ((each[:, :1] if shared else each).to(dtype).contiguous() for each in (keys, values))
    tiles = []
    for start in range(0, q.shape[2], _PLAIN_TILE_ROWS):
        rows = q[:, :, start : start + _PLAIN_TILE_ROWS].to(dtype) * scale
        stop = start + rows.shape[2]
        seen = stop if is_causal else keys.shape[2]
        scores = _products(rows, keys[:, :, :seen].transpose(2, 3))
        if is_causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(start + 1)
            scores = scores.masked_fill(later, float("-inf"))
        if attn_mask is not None:
            scores = scores + (attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., start:stop, :])
        tiles.append(_products(scores.softmax(-1), values[:, :, :seen]))
    return torch.cat(tiles, 2).to(q.dtype)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """left [a, b, m, K] with right [a, b, K, n], or with right [a, 1, K, n]: rows of all b together then."""
    a, b, m, width = left.shape
    return (left.reshape(a, right.shape[1], -1, width) @ right).view(a, b, m, right.shape[3])
