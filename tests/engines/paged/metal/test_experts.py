"""Mixtures of experts: routing, and the result of each row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.core.errors import EngineError
from engines.paged.ops.interface import Dense, Weight
from engines.paged.ops.metal import MetalOps
from engines.paged.ops.metal.linear import TILE
from engines.paged.ops.reference.experts import route
from tests.engines.paged.metal.conftest import MakeOps
from tests.engines.paged.metal.matrices import Format, assert_within, numbers

FORMATS = [Format(torch.float32), Format(torch.float16, 4, 32), Format(torch.bfloat16, 8, 64)]
# (experts, choices): a small Mixtral, one choice, all experts chosen, more experts than a simdgroup has lanes.
SHAPES = [(4, 2), (8, 1), (4, 4), (40, 4)]


class Mixture:
    """E experts of `width` features with an inner width of `inner`, and a plain sum over them."""

    def __init__(self, format_: Format, num_experts: int, width: int, inner: int) -> None:
        self.generator = torch.Generator().manual_seed(num_experts)
        self.gate, self.up = ([format_.random(inner, width, self.generator) for _ in range(num_experts)] for _ in "gu")
        self.down = [format_.random(width, inner, self.generator) for _ in range(num_experts)]
        self.dtype, self.width = format_.dtype, width

    def rows(self, n: int) -> tuple[Tensor, Tensor]:
        """x and the router's logits."""
        x, logits = (
            torch.randn(n, self.width, generator=self.generator),
            torch.randn(n, len(self.gate), generator=self.generator),
        )
        return x.to(self.dtype), logits.to(self.dtype)

    def plain(self, x: Tensor, shares: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The result in float64, and the sum of the absolute values of its terms."""
        matrices: list[list[Weight]] = [self.gate, self.up, self.down]
        gate, up, down = (torch.stack([numbers(each) for each in of]) for of in matrices)
        x, share_of = x.double(), torch.zeros(x.shape[0], 1, len(self.gate), dtype=torch.float64)
        share_of.scatter_(2, chosen[:, None], shares.double()[:, None])
        opened, passed = (torch.einsum("eik,nk->nei", each, x) for each in (gate, up))
        sizes = [torch.einsum("eik,nk->nei", each.abs(), x.abs()) for each in (gate, up)]
        silu = torch.nn.functional.silu(opened)
        # gate and up are rounded sums as well, and so is their product
        inner = silu.abs() * passed.abs() + 1.1 * sizes[0] * passed.abs() + silu.abs() * sizes[1]
        results = torch.einsum("eki,nei->nek", down, silu * passed)
        return (share_of @ results)[:, 0], 2 * (share_of @ torch.einsum("eki,nei->nek", down.abs(), inner))[:, 0]


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("format_", FORMATS, ids=str)
@pytest.mark.parametrize("num_experts, top_k", SHAPES)
@pytest.mark.parametrize("n", [1, 3, 17, 75])
def test_mixture_is_the_sum_of_its_experts(
    metal_ops: MakeOps, format_: Format, num_experts: int, top_k: int, n: int
) -> None:
    """Each row is the weighted sum of its k experts' results, for few rows or many, renormalised or not."""
    ops, mixture = metal_ops(), Mixture(format_, num_experts, 64, 64 if format_.bits == 8 else 96)
    experts = ops.prepare_experts(mixture.gate, mixture.up, mixture.down)
    x, logits = mixture.rows(n)
    for renormalize in (True, False):
        mixed = ops.moe(x.to(ops.device), logits.to(ops.device), experts, top_k, renormalize)
        assert_within(mixed, *mixture.plain(x, *route(logits, top_k, renormalize)))


def test_few_rows_take_three_kernels(metal_ops: MakeOps) -> None:
    """Decoding runs three kernels: routing, gating and the sum; a prompt is sorted by expert first."""
    mixture = Mixture(FORMATS[0], 4, 64, 32)
    for n, kernels in (
        (8, {"moe_route", "moe_gemv", "moe_gemv_down"}),
        (9, {"moe_route", "moe_sort", "moe_qmm_swiglu", "moe_qmm", "moe_combine"}),
    ):
        ops = metal_ops()
        x, logits = (each.to(ops.device) for each in mixture.rows(n))
        ops.moe(x, logits, ops.prepare_experts(mixture.gate, mixture.up, mixture.down), 2, True)
        assert ops.kernels.dispatches == dict.fromkeys(kernels, 1)


def test_a_row_does_not_depend_on_others(metal_ops: MakeOps) -> None:
    """In deterministic mode a row's mixture is bit-identical alone and among others."""
    ops, mixture = metal_ops(is_deterministic=True), Mixture(FORMATS[1], 4, 64, 96)
    experts = ops.prepare_experts(mixture.gate, mixture.up, mixture.down)
    x, logits = (each.to(ops.device) for each in mixture.rows(33))
    together = ops.moe(x, logits, experts, 2, True)
    for row in (0, 5, 32):
        at = slice(row, row + 1)
        assert torch.equal(ops.moe(x[at].contiguous(), logits[at].contiguous(), experts, 2, True), together[at])


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("num_experts, top_k", [(2, 1), (8, 8), (33, 5), (128, 8)])
@pytest.mark.parametrize("renormalize", [True, False])
def test_route_takes_the_likeliest(
    metal_ops: MakeOps, dtype: torch.dtype, num_experts: int, top_k: int, renormalize: bool
) -> None:
    """Routing takes the k largest logits in descending order, the lowest id first among equals; weights are the softmax
    over all logits, or over the chosen ones."""
    ops, generator = metal_ops(), torch.Generator().manual_seed(num_experts)
    # Halves: most rows have equal logits. In one row only one expert can be chosen.
    logits = (torch.randn(7, num_experts, generator=generator) * 4).round() / 2
    logits[6, 1:] = -torch.inf
    chosen, shares = run_route(ops, logits.to(dtype), top_k, renormalize)
    expected_shares, expected = route(logits, top_k, renormalize)
    assert torch.equal(chosen.long(), expected)
    torch.testing.assert_close(shares, expected_shares, rtol=1e-6, atol=1e-7)


def test_route_of_nan_stays_among_the_experts(metal_ops: MakeOps) -> None:
    """A row of NaN yields NaN weights and valid expert ids, so that no kernel reads out of bounds."""
    ops = metal_ops()
    chosen, shares = run_route(ops, torch.full((1, 6), torch.nan), 3, True)
    assert ((chosen >= 0) & (chosen < 6)).all()
    assert shares.isnan().all()


def run_route(ops: MetalOps, logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    n, num_experts = logits.shape
    chosen = torch.full((n, top_k), -1, dtype=torch.int32, device=ops.device)
    shares = torch.zeros(n, top_k, device=ops.device)
    library = ops.kernels.load("experts", T=logits.dtype, BITS=0, GROUP=32)
    library.run("moe_route", (n,), 32, chosen, shares, logits.to(ops.device), num_experts, top_k, renormalize)
    return chosen.cpu(), shares.cpu()


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("num_experts, assignments", [(1, 1), (3, 32), (5, 200), (64, 130), (1024, 70)])
def test_sort_keeps_the_order(metal_ops: MakeOps, num_experts: int, assignments: int) -> None:
    """Assignments are grouped by expert, in order within each; tiles cover each expert's rows exactly once."""
    ops, generator = metal_ops(), torch.Generator().manual_seed(assignments)
    experts = torch.randint(0, num_experts, (assignments,), generator=generator, dtype=torch.int32)
    experts[experts == 1] = 0  # an expert without rows
    most_tiles = min(assignments // TILE + num_experts, assignments)
    order = torch.full((assignments,), -7, dtype=torch.int32, device=ops.device)
    tiles = torch.full((most_tiles, 3), -7, dtype=torch.int32, device=ops.device)
    library = ops.kernels.load("experts", T=torch.float32, BITS=0, GROUP=32)
    args = order, tiles, experts.to(ops.device), assignments, num_experts, TILE, most_tiles
    library.run("moe_sort", (1,), 1024, *args)

    assert torch.equal(order.cpu().long(), experts.argsort(stable=True))
    used = [tile for tile in tiles.tolist() if tile[0] != -1]
    assert all(tile[0] == -1 for tile in tiles.tolist()[len(used) :])
    covered = [(expert, at) for expert, start, end in used for at in range(start, end)]
    assert covered == [(expert, at) for at, expert in enumerate(experts.sort(stable=True).values.tolist())]
    assert all(0 < end - start <= TILE for _, start, end in used)


def test_too_many_experts(metal_ops: MakeOps) -> None:
    """A model with more experts than the sort supports is refused when it is loaded."""
    one = [Dense(torch.ones(1, 4))] * 1025
    with pytest.raises(EngineError, match="1025 experts"):
        metal_ops().prepare_experts(one, one, [Dense(torch.ones(4, 1))] * 1025)
