"""The reference operations against their definitions, written out slowly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engines.paged.ops.interface import Batch, Dense, LayerCache, Quantized
from engines.paged.ops.packing import dequantize, join, pack, unpack, widen
from engines.paged.ops.reference import Ops
from engines.paged.ops.reference.attention import PagedAttention, plain_attention
from engines.paged.weights.loader import held_bytes
from tests.engines.paged.support.paging import batch_of as make_batch

BLOCK = 4


def batch_of(query_lens: list[int], context_lens: list[int], tables: list[list[int]]) -> Batch:
    return make_batch(query_lens, context_lens, tables, BLOCK)


def slow_attention(q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
    """Attention row by row, in float64."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    shared = q.shape[1] // cache.keys.shape[2]
    for row, (position, sequence) in enumerate(
        zip(batch.positions.tolist(), batch.row_sequences.tolist(), strict=True)
    ):
        table = batch.block_tables_list[sequence]
        first = max(0, position - window + 1) if window else 0
        at = [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(first, position + 1)]
        keys, values = (each.flatten(0, 1)[at].double().repeat_interleave(shared, 1) for each in cache)
        weights = torch.softmax((keys * q[row].double()).sum(-1) * scale, 0)
        out[row] = (weights.unsqueeze(-1) * values).sum(0)
    return out.flatten(1)


SCATTERED = [[9, 3, 17, 5, 1], [2, 30, 7], [11, 12, 13], [25, 6, 8, 20], [40, 41, 42, 43, 44, 45]]
RUN = list(range(1, 41))
CASES = {
    "one decode, scattered": ([1], [19], [SCATTERED[0]]),
    "one decode, one token": ([1], [1], [[3]]),
    "one decode, a long run": ([1], [157], [RUN]),
    "decodes of many lengths": ([1, 1, 1, 1, 1], [19, 12, 9, 14, 23], SCATTERED),
    "decodes, one of them a long run": ([1, 1, 1], [3, 160, 7], [[50], RUN, [60, 55]]),
    "a whole prefill": ([18], [18], [SCATTERED[0]]),
    "a chunk after others": ([5], [19], [SCATTERED[0]]),
    "decodes, a chunk, a whole prefill": ([1, 1, 5, 14], [12, 9, 23, 14], [SCATTERED[at] for at in (1, 2, 4, 3)]),
    "a chunk of more rows than a piece": ([300], [310], [torch.randperm(100).add(1).tolist()]),
}


def reference(attends: str) -> Ops:
    """The reference operations; `plain` attends as on MPS, by matrix products."""
    ops = Ops("cpu")
    if attends == "plain":
        ops._attention = PagedAttention(torch.device("mps"))
    return ops


@pytest.mark.parametrize("attends", ["torch", "plain"])
@pytest.mark.parametrize("case, heads, groups, window", [
    (case, heads, groups, window)
    for case, (query_lens, *_) in CASES.items()
    for heads, groups in ((4, 4), (4, 2), (8, 1))
    for window in (0, 1, 6, 200)
    if max(query_lens) < 100 or (heads, window) in ((4, 0), (4, 6))  # the slow definition takes seconds there
])  # fmt: skip
def test_attention(case: str, heads: int, groups: int, window: int, attends: str):
    """Each row attends to the cached tokens of its own sequence up to itself, wherever their blocks are."""
    torch.manual_seed(1)
    batch = batch_of(*CASES[case])
    cache = LayerCache(torch.randn(128, BLOCK, groups, 8), torch.randn(128, BLOCK, groups, 8))
    q = torch.randn(len(batch.positions), heads, 8)
    ops = reference(attends)
    expected = slow_attention(q, cache, batch, 0.3, window)
    for _ in range(2):  # the second layer of a step uses the plan of the first
        assert torch.allclose(ops.attention(q, cache, batch, 0.3, window).double(), expected, atol=2e-6)


@pytest.mark.parametrize("attends", ["torch", "plain"])
def test_attention_never_reads_what_is_not_the_sequences_own(attends: str):
    """The contents of other blocks and of slots after the context, even NaN, do not affect a sequence."""
    batch = batch_of([1, 1, 6], [5, 12, 10], [[3, 9], [2, 30, 7], [11, 14, 13]])
    poisoned = [torch.full((64, BLOCK, 1, 8), float("nan")) for _ in range(2)]
    for table, tokens in zip(batch.block_tables_list, batch.context_lens_list, strict=True):
        for position in range(tokens):
            for each in poisoned:
                each[table[position // BLOCK], position % BLOCK] = 1.0
    q = torch.ones(8, 2, 8)
    seen = reference(attends).attention(q, LayerCache(*poisoned), batch, 1.0, 0)
    assert torch.allclose(seen, torch.ones(8, 16), atol=1e-6)


# (a, b, rows, tokens, whether all of b share their keys, mask, causal)
PLAIN = [
    (1, 4, 1, 9, False, None, False),
    (2, 3, 5, 40, True, None, False),
    (1, 2, 300, 300, True, None, True),
    (3, 1, 257, 257, False, None, True),
    (2, 4, 300, 310, True, "rows", False),
    (4, 2, 3, 20, False, "tokens", False),
]


@pytest.mark.parametrize("a, b, rows, tokens, is_shared, mask, is_causal", PLAIN)
def test_plain_attention_is_torchs(
    a: int, b: int, rows: int, tokens: int, is_shared: bool, mask: str | None, is_causal: bool
):
    """Attention by products and a softmax, in float64, equals scaled_dot_product_attention up to rounding."""
    torch.manual_seed(6)
    q = torch.randn(a, b, rows, 16, dtype=torch.float64)
    keys, values = (torch.randn(a, 1 if is_shared else b, tokens, 16, dtype=torch.float64) for _ in range(2))
    if is_shared:
        keys, values = keys.expand(a, b, -1, -1), values.expand(a, b, -1, -1)
    shapes = {"rows": (rows, tokens), "tokens": (a, 1, 1, tokens)}
    hidden = torch.rand(shapes[mask]) < 0.3 if mask else None
    if hidden is not None:
        hidden[..., 0] = False  # each row sees a token
    added = None if hidden is None else torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, -math.inf)
    arguments = {"attn_mask": added, "is_causal": is_causal, "scale": 0.3}
    expected = scaled_dot_product_attention(q, keys, values, **arguments)
    assert torch.allclose(plain_attention(q, keys, values, **arguments), expected, rtol=1e-12, atol=1e-12)


def test_plain_attention_rounds_once():
    """Sums of 16-bit values are in float32: the result is as close to float64 as its dtype allows."""
    torch.manual_seed(6)
    q, keys, values = (torch.randn(1, 2, 4, 64).half() for _ in range(3))
    expected = scaled_dot_product_attention(q.double(), keys.double(), values.double(), scale=0.125)
    seen = plain_attention(q, keys, values, scale=0.125)
    assert seen.dtype == torch.float16
    assert float((seen - expected).abs().max()) < 1e-3


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("rotary", [8, 4])
@pytest.mark.parametrize("has_norm", [False, True])
def test_rope_write(dtype: torch.dtype, tolerance: float, rotary: int, has_norm: bool):
    """Queries and keys are normed and rotated by their rows' positions; keys and values are written to the rows'
    slots."""
    torch.manual_seed(2)
    heads, groups, size = 4, 2, 8
    batch = batch_of([1, 3], [7, 3], [[5, 2], [9]])
    cache = LayerCache(*(torch.zeros(12, BLOCK, groups, size, dtype=dtype) for _ in range(2)))
    qkv = torch.randn(4, (heads + 2 * groups) * size).to(dtype)
    angles = torch.arange(16)[:, None] / 10000 ** (torch.arange(0, rotary, 2) / rotary)
    norms = (torch.rand(size).to(dtype), torch.rand(size).to(dtype)) if has_norm else None
    q = Ops("cpu").rope_write(qkv, cache, batch, (angles.cos(), angles.sin()), norms, 1e-5)

    split = qkv.double().view(4, -1, size)
    for row, position in enumerate([6, 0, 1, 2]):
        block, offset = divmod([2 * 4 + 2, 36, 37, 38][row], BLOCK)
        for head in range(heads + groups):
            vector = split[row, head].clone()
            if has_norm:
                vector = vector / math.sqrt(float((vector**2).mean()) + 1e-5) * norms[head >= heads].double()
            half = rotary // 2
            for i in range(half):
                c, s = math.cos(angles[position, i]), math.sin(angles[position, i])
                a, b = float(vector[i]), float(vector[i + half])
                vector[i], vector[i + half] = a * c - b * s, b * c + a * s
            seen = q[row, head] if head < heads else cache.keys[block, offset, head - heads]
            assert torch.allclose(seen.double(), vector, atol=tolerance, rtol=tolerance)
        assert torch.equal(cache.values[block, offset].double(), split[row, heads + groups :])
    assert int((cache.keys != 0).any(-1).any(-1).sum()) == 4


def test_add_rmsnorm():
    """The residual adds x, and the output is its RMS norm."""
    ops = Ops("cpu")
    x, weight = torch.randn(3, 8), torch.rand(8)
    normed, residual = ops.add_rmsnorm(x.clone(), None, weight, 1e-6)
    assert torch.equal(residual, x)
    assert torch.allclose(normed, x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight, atol=1e-6)
    delta = torch.randn(3, 8)
    _, residual = ops.add_rmsnorm(delta, residual, weight, 1e-6)
    assert torch.equal(residual, x + delta)


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_round_trip(bits: int):
    """Packed words hold value i in the bits from i * b on, including the highest bit."""
    values = torch.randint(0, 2**bits, (5, 64))
    packed = pack(values, bits)
    assert packed.dtype == torch.int32
    assert torch.equal(unpack(packed, bits), values.int())
    first = sum(int(v) << (i * bits) for i, v in enumerate(values[0, : 32 // bits]))
    assert int(packed[0, 0]) & 0xFFFFFFFF == first


def quantized(n: int, k: int, bits: int, group: int, dtype: torch.dtype = torch.float32) -> Quantized:
    values = torch.randint(0, 2**bits, (n, k))
    scales = torch.rand(n, k // group).add(0.5).mul(0.02).to(dtype)
    return Quantized(pack(values, bits), scales, (-scales * 2 ** (bits - 1)), bits, group)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
@pytest.mark.parametrize("bits, group", [(4, 32), (4, 64), (4, 128), (8, 64)])
@pytest.mark.parametrize("rows", [1, 4, 5, 70])
def test_quantized_products(bits: int, group: int, dtype: torch.dtype, tolerance: float, rows: int):
    """A product with a quantized matrix is close to that with the exactly expanded one, for few rows and for many."""
    torch.manual_seed(4)
    weight, bias = quantized(2080, 256, bits, group, dtype), torch.randn(2080).to(dtype)
    x = torch.randn(rows, 256).to(dtype)
    ops = Ops("cpu")
    expected = x.double() @ dequantize(weight, torch.float64).T + bias.double()
    seen = ops.linear(x, ops.prepare_linear(weight, bias))
    assert seen.dtype == dtype
    assert float((seen - expected).abs().max() / expected.abs().max()) < tolerance


def test_packed_matrices_take_little():
    """4-bit matrices with their expanded form take little more memory than bfloat16."""
    weight = quantized(2048, 1024, 4, 64, torch.bfloat16)
    dense = 2048 * 1024 * 2
    assert dense <= held_bytes(Ops("cpu").prepare_linear(weight)) <= 1.35 * dense


def test_gate_up_takes_what_adapters_add():
    """The result is silu(gate x + a) * (up x + b); without adapters a and b are zero."""
    torch.manual_seed(5)
    gate, up, x, a, b = (torch.randn(*shape) for shape in ((6, 8), (6, 8), (3, 8), (3, 6), (3, 6)))
    ops = Ops("cpu")
    prepared = ops.prepare_gate_up(Dense(gate), Dense(up))
    silu = torch.nn.functional.silu
    assert torch.allclose(ops.gate_up(x, prepared), silu(x @ gate.T) * (x @ up.T), atol=1e-5)
    assert torch.allclose(ops.gate_up(x, prepared, (a, b)), silu(x @ gate.T + a) * (x @ up.T + b), atol=1e-5)


def test_joined_weights_keep_their_numbers():
    """4-bit matrices joined with 8-bit ones become 8-bit with the same values; joined with a dense one they are
    expanded."""
    four, eight = quantized(3, 128, 4, 64), quantized(5, 128, 8, 32)
    joined = join([four, eight])
    assert isinstance(joined, Quantized)
    assert (joined.bits, joined.group_size) == (8, 32)
    assert torch.equal(dequantize(joined), torch.cat([dequantize(four), dequantize(eight)]))
    assert torch.equal(dequantize(widen(four, 4, 32)), dequantize(four))
    dense = join([four, Dense(torch.ones(2, 128))])
    assert isinstance(dense, Dense)
    assert dense.shape == (5, 128)


@pytest.mark.parametrize("renormalize", [False, True])
def test_moe(renormalize: bool):
    """A row uses its likeliest experts, the lower id first among equals; their results are summed by weight."""
    torch.manual_seed(3)
    gate, up, down = (torch.randn(4, *shape) for shape in ((6, 8), (6, 8), (8, 6)))
    ops = Ops("cpu")
    experts = ops.prepare_experts(*([Dense(w) for w in each] for each in (gate, up, down)))
    x = torch.randn(5, 8)
    logits = torch.randn(5, 4)
    logits[0] = 1.0  # all equal: experts 0 and 1
    seen = ops.moe(x, logits, experts, 2, renormalize)
    for row in range(5):
        shares = torch.softmax(logits[row], 0)
        chosen = sorted(range(4), key=lambda e: (-float(shares[e]), e))[:2]
        weights = shares[chosen] / (shares[chosen].sum() if renormalize else 1)
        expected = sum(
            w * (down[e] @ (torch.nn.functional.silu(gate[e] @ x[row]) * (up[e] @ x[row])))
            for w, e in zip(weights, chosen, strict=True)
        )
        assert torch.allclose(seen[row], expected, atol=1e-5)


def test_copy_blocks():
    """Blocks are copied in every layer; all are read before any is written."""
    keys, values = torch.randn(2, 5, BLOCK, 1, 4), torch.randn(2, 5, BLOCK, 1, 4)
    before = keys.clone(), values.clone()
    Ops("cpu").copy_blocks(keys, values, torch.tensor([[1, 3], [3, 4]]))
    for now, then in zip((keys, values), before, strict=True):
        assert torch.equal(now[:, 3], then[:, 1])
        assert torch.equal(now[:, 4], then[:, 3])
        assert torch.equal(now[:, :3], then[:, :3])


def test_quantized_embedding():
    """Rows of a packed table equal those of the expanded one."""
    table = quantized(10, 64, 4, 32)
    ops = Ops("cpu")
    rows = ops.embed(torch.tensor([3, 0, 3], dtype=torch.int32), ops.prepare_embedding(table))
    assert torch.equal(rows, dequantize(table)[[3, 0, 3]])
