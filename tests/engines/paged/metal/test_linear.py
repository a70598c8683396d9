"""Matrix products: dense and packed, for few rows and for many."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.core.errors import EngineError
from engines.paged.ops.interface import Dense, Quantized
from engines.paged.ops.metal.linear import LEAST_ROWS_TO_UNPACK, LinearOps
from tests.engines.paged.metal.conftest import MakeOps
from tests.engines.paged.metal.matrices import Format, assert_product, assert_within, numbers

FORMATS = [
    Format(torch.float32), Format(torch.float16), Format(torch.bfloat16),
    Format(torch.float32, 4, 32), Format(torch.float16, 4, 64), Format(torch.bfloat16, 4, 128),
    Format(torch.float32, 8, 128), Format(torch.float16, 8, 32), Format(torch.bfloat16, 8, 64),
]  # fmt: skip
# Rows of W: fewer than a simdgroup has, a half-empty last simdgroup, more than a tile.
NUM_ROWS = [1, 10, 45]


def widths_of(format_: Format) -> list[int]:
    """K: less than a simdgroup reads at a time, more with a tail, and for dense weights no multiple of 4 or of 2."""
    return [format_.group_size * groups for groups in (1, 3, 5)] if format_.bits else [4, 33, 130, 260]


def rows(n: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(n, width, generator=generator).to(dtype)


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("format_", FORMATS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33])
def test_linear_multiplies(metal_ops: MakeOps, format_: Format, n: int) -> None:
    """A product of any number of rows with a matrix of any shape, with or without a bias, equals float64's up to
    rounding."""
    ops, generator = metal_ops(), torch.Generator().manual_seed(n)
    for num_rows in NUM_ROWS:
        for width in widths_of(format_):
            weight = format_.random(num_rows, width, generator)
            bias = torch.randn(num_rows, generator=generator).to(format_.dtype) if num_rows % 2 else None
            x = rows(n, width, format_.dtype, generator)
            y = ops.linear(x.to(ops.device), ops.prepare_linear(weight, bias))
            assert y.dtype == format_.dtype
            assert_product(y, x, numbers(weight), bias)


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("format_", FORMATS, ids=str)
@pytest.mark.parametrize("n", [1, 3, 8, 9, 33])
def test_gate_up_is_gated(metal_ops: MakeOps, format_: Format, n: int) -> None:
    """silu(gate x) * up x is computed in one pass over both matrices; adapters' terms are added before the silu."""
    ops, generator = metal_ops(), torch.Generator().manual_seed(n)
    for num_rows in (3, 22):
        width = widths_of(format_)[1]
        gate, up = (format_.random(num_rows, width, generator) for _ in range(2))
        x = rows(n, width, format_.dtype, generator)
        deltas = rows(n, num_rows, format_.dtype, generator), rows(n, num_rows, format_.dtype, generator)
        both = ops.prepare_gate_up(gate, up)
        on_device = deltas[0].to(ops.device), deltas[1].to(ops.device)
        assert_gated(ops.gate_up(x.to(ops.device), both), x, numbers(gate), numbers(up), (0.0, 0.0))
        assert_gated(ops.gate_up(x.to(ops.device), both, on_device), x, numbers(gate), numbers(up), deltas)


def assert_gated(
    actual: Tensor, x: Tensor, gate: Tensor, up: Tensor, deltas: tuple[Tensor, Tensor] | tuple[float, float]
) -> None:
    x = x.double()
    opened, passed = x @ gate.T + deltas[0], x @ up.T + deltas[1]
    # Each factor has the error of its own sum (silu's slope is at most 1.1).
    sizes = [x.abs() @ each.abs().T + abs(delta) for each, delta in ((gate, deltas[0]), (up, deltas[1]))]
    silu = torch.nn.functional.silu(opened)
    assert_within(actual, silu * passed, 2 * (1.1 * sizes[0] * passed.abs() + silu.abs() * sizes[1]))


def test_silu_of_large_numbers(metal_ops: MakeOps) -> None:
    """silu is 0 for a gate far below zero and the gate itself far above zero: no overflow makes it NaN."""
    ops = metal_ops()
    gate, up = Dense(torch.tensor([[-200.0], [200.0], [0.0]])), Dense(torch.ones(3, 1))
    gated = ops.gate_up(torch.ones(1, 1, device=ops.device), ops.prepare_gate_up(gate, up))
    assert gated.tolist() == [[0.0, 200.0, 0.0]]


@pytest.mark.parametrize("format_", [Format(torch.float16), Format(torch.float16, 4, 64)], ids=str)
def test_matrices_of_two_formats_are_gated_together(metal_ops: MakeOps, format_: Format) -> None:
    """A 4-bit gate beside an 8-bit or dense up matrix keeps its values, and so does the other."""
    ops, generator = metal_ops(), torch.Generator().manual_seed(0)
    gate, up = Format(torch.float16, 8, 128).random(5, 128, generator), format_.random(5, 128, generator)
    x = rows(2, 128, torch.float16, generator)
    gated = ops.gate_up(x.to(ops.device), ops.prepare_gate_up(gate, up))
    assert_gated(gated, x, numbers(gate), numbers(up), (0.0, 0.0))


@pytest.mark.parametrize("format_", [Format(torch.float16), Format(torch.float16, 4, 64)], ids=str)
@pytest.mark.parametrize("is_deterministic, together", [(True, (2, 8, 9, 33)), (False, (2, 3, 5, 8))])
def test_a_row_does_not_depend_on_others(
    metal_ops: MakeOps, format_: Format, is_deterministic: bool, together: tuple[int, ...]
) -> None:
    """In deterministic mode a row's products are bit-identical alone and among any number of others; with at most 8
    rows they always are."""
    ops, generator = metal_ops(is_deterministic=is_deterministic), torch.Generator().manual_seed(0)
    gate, up = format_.random(45, 640, generator), format_.random(45, 640, generator)
    linear, both = ops.prepare_linear(gate), ops.prepare_gate_up(gate, up)
    x = rows(together[-1], 640, format_.dtype, generator).to(ops.device)
    alone = [(ops.linear(row, linear), ops.gate_up(row, both)) for row in x.split(1)]
    products, gated = (torch.cat(each) for each in zip(*alone, strict=True))
    for n in together:
        assert torch.equal(ops.linear(x[:n], linear), products[:n])
        assert torch.equal(ops.gate_up(x[:n], both), gated[:n])


@pytest.mark.parametrize(
    "bits, n, kernels",
    [
        (0, 8, {"gemv_8": 1, "gemv_swiglu_8": 1}),
        (0, 32, {"qmm": 1, "qmm_swiglu": 1}),
        (0, 33, {"swiglu": 1}),
        (4, 33, {"qmm": 1, "qmm_swiglu": 1}),
        (4, LEAST_ROWS_TO_UNPACK, {"dequant": 2, "swiglu": 1}),
    ],
)
def test_torch_multiplies_where_it_is_faster(
    metal_ops: MakeOps, monkeypatch: pytest.MonkeyPatch, bits: int, n: int, kernels: dict[str, int]
) -> None:
    """On a Mac many rows use torch's product; packed matrices are unpacked for it if there are enough rows."""
    monkeypatch.setattr(LinearOps, "has_torch_product", True)
    ops, generator, format_ = metal_ops(), torch.Generator().manual_seed(0), Format(torch.float32, bits)
    weight, up = (format_.random(34, 96, generator) for _ in range(2))
    bias = torch.randn(34, generator=generator)
    x = rows(n, 96, torch.float32, generator)
    assert_product(ops.linear(x.to(ops.device), ops.prepare_linear(weight, bias)), x, numbers(weight), bias)
    gated = ops.gate_up(x.to(ops.device), ops.prepare_gate_up(weight, up))
    assert_gated(gated, x, numbers(weight), numbers(up), (0.0, 0.0))
    assert ops.kernels.dispatches == kernels


@pytest.mark.parametrize("format_", FORMATS[3:], ids=str)
def test_packed_embedding(metal_ops: MakeOps, format_: Format) -> None:
    """A token's row of a packed table is scale * q + bias, rounded once."""
    ops, generator = metal_ops(), torch.Generator().manual_seed(0)
    for groups in (1, 5):
        table = format_.random(50, groups * format_.group_size, generator)
        tokens = torch.randint(0, 50, (9,), generator=generator, dtype=torch.int32)
        x = ops.embed(tokens.to(ops.device), ops.prepare_embedding(table))
        assert_within(x, numbers(table)[tokens.long()], numbers(table)[tokens.long()].abs())


@pytest.mark.parametrize("bits, group_size", [(2, 32), (6, 64), (4, 16), (8, 256)])
def test_formats_that_have_no_kernel(metal_ops: MakeOps, bits: int, group_size: int) -> None:
    """Weights of other formats are refused with an error that names the problem."""
    weight = Quantized(torch.zeros(1, 8, dtype=torch.int32), torch.ones(1, 1), torch.zeros(1, 1), bits, group_size)
    with pytest.raises(EngineError, match=f"{bits} bits in groups of {group_size}"):
        metal_ops().prepare_linear(weight)


def test_rows_of_another_dtype(metal_ops: MakeOps) -> None:
    """Rows of another dtype than the matrix are refused, since a kernel would misread their bytes."""
    ops = metal_ops()
    linear = ops.prepare_linear(Dense(torch.ones(2, 4, dtype=torch.float16)))
    with pytest.raises(ValueError, match=r"x is of torch\.float32"):
        ops.linear(torch.ones(1, 4, device=ops.device), linear)
