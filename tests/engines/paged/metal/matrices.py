"""Matrices for kernel tests, and the error that their products may have against float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.paged.ops.interface import Dense, Quantized, Weight
from engines.paged.ops.packing import expand, pack

EPS = {torch.float32: 2e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


@dataclass(frozen=True)
class Format:
    """How a matrix is stored: with `bits` 0 it is dense, and K may be any number."""

    dtype: torch.dtype
    bits: int = 0
    group_size: int = 32

    def __str__(self) -> str:
        kind = f"int{self.bits}g{self.group_size}" if self.bits else "dense"
        return f"{kind}-{str(self.dtype).removeprefix('torch.')}"

    def random(self, num_rows: int, width: int, generator: torch.Generator) -> Weight:
        """Values of about 1 / sqrt(width), and if packed with a different mean in each group."""
        if not self.bits:
            return Dense((torch.randn(num_rows, width, generator=generator) / width**0.5).to(self.dtype))
        q = torch.randint(0, 2**self.bits, (num_rows, width), generator=generator)
        scales = (torch.rand(num_rows, width // self.group_size, generator=generator) + 0.5) / 2**self.bits / width**0.5
        means = torch.randn(scales.shape, generator=generator) * 0.3 / width**0.5
        biases = means - scales * 2 ** (self.bits - 1)
        return Quantized(pack(q, self.bits), scales.to(self.dtype), biases.to(self.dtype), self.bits, self.group_size)


def numbers(weight: Weight) -> Tensor:
    """The matrix's values in float64."""
    return expand(weight, torch.float32).double()


def assert_product(actual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Assert that `actual` is x @ weight.T + bias in float64, up to rounding of each factor and of the result."""
    x = x.cpu().double()
    added = torch.zeros(1) if bias is None else bias.double()
    assert_within(actual, x @ weight.T + added, x.abs() @ weight.abs().T + added.abs())


def assert_within(actual: Tensor, expected: Tensor, size: Tensor) -> None:
    """Assert that the error is below a unit in the last place of a sum whose terms' absolute values add up to
    `size`."""
    assert actual.shape == expected.shape
    error = (actual.cpu().double() - expected).abs()
    allowed = size * EPS[actual.dtype] + 1e-7
    assert (error <= allowed).all(), f"off by {(error / allowed).max():.1f} times what rounding explains"
