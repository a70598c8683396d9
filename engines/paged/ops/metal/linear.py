"""Matrices, dense or packed in MLX's layout: products, the gated pair of an MLP, and embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.ops.interface import Dense, Quantized, Weight
from engines.paged.ops.metal.kernels import KernelFamily, Library, check
from engines.paged.ops.packing import join


@dataclass(frozen=True, slots=True)
class Matrix:
    """W [N, K], or E of them stacked; if packed, with its scales and biases (dense: itself three times)."""

    weight: Tensor
    scales: Tensor
    biases: Tensor
    bits: int  # 0: dense
    group_size: int
    shape: tuple[int, int]  # N, K
    added: Tensor | None = None  # [N], to each product

    @property
    def dtype(self) -> torch.dtype:
        return self.scales.dtype

    @property
    def buffers(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.scales, self.biases


class MatrixFamily(KernelFamily):
    """A family whose kernels read matrices: its library is compiled for their format."""

    is_deterministic: bool

    def matrix(self, weight: Weight, bias: Tensor | None = None) -> Matrix:
        if isinstance(weight, Dense):
            dense = self.weight(weight.weight)
            parts, bits, group_size = (dense, dense, dense), 0, 32
        else:
            if weight.bits not in (4, 8) or weight.group_size not in (32, 64, 128):
                raise invalid(
                    f"weights of {weight.bits} bits in groups of {weight.group_size}: Metal's kernels take 4 or 8 bits "
                    "in groups of 32, 64 or 128"
                )
            packed = weight.packed.to(self.device).contiguous()
            parts = packed, self.weight(weight.scales), self.weight(weight.biases)
            bits, group_size = weight.bits, weight.group_size
        added = None if bias is None else self.weight(bias.to(parts[1].dtype))
        return Matrix(*parts, bits, group_size, weight.shape, added)

    def library(self, family: str, matrix: Matrix) -> Library:
        return self.kernels.load(family, T=matrix.dtype, BITS=matrix.bits, GROUP=matrix.group_size)


def interleave(joined: Weight) -> Weight:
    """Two stacked matrices of N rows with their rows alternating."""
    return joined.map(lambda rows: torch.stack(rows.chunk(2), dim=1).flatten(0, 1))


# Up to here each row of W is read once for all rows of x, and a tile of 32 would be three quarters empty.
MOST_GEMV_ROWS = 8
# Rows of W per threadgroup of gemv: 2 simdgroups of 4 each.
GEMV_GROUP_ROWS, GEMV_THREADS = 8, 64
# Kernels exist for 1, 2, 4 and 8 rows of x at a time: the kernel by the number of rows.
GEMV_KERNEL_ROWS = (1, 1, 2, 4, 4, 8, 8, 8, 8)
TILE, TILE_THREADS = 32, 128
# From here on torch multiplies by dense matrices on a Mac. Up to a tile's rows `qmm` reads W only once as well, and a
# decoding step avoids MPSGraph, whose operations take 20 us of the processor and end the encoder.
LEAST_ROWS_OF_TORCH = TILE + 1
# From here on a packed matrix is unpacked and multiplied by torch on a Mac: if torch's product is half again as fast as
# tiles of 32 (ENGINE.md, A3), writing and reading 2 bytes a weight pays from some 150 rows on. Not yet measured.
LEAST_ROWS_TO_UNPACK = 256
# Values of the scratch for unpacked matrices, 128 MiB of 16 bits: larger ones (a head) stay packed.
MOST_UNPACKED = 64 * 1024 * 1024


class LinearOps(MatrixFamily):
    """Three kinds of products:

    1. `gemv` for up to 8 rows, and in deterministic mode for all: it sums a row in one order always, but reads W
       once for each 8 rows of a prompt;
    2. torch's own product for more rows on a Mac's GPU, where W is dense or worth unpacking;
    3. `qmm`, tiles of 32 rows, for the rest.
    """

    _unpacked: Tensor | None = None

    @property
    def has_torch_product(self) -> bool:
        return self.device.type == "mps"

    def prepare_linear(self, weight: Weight, bias: Tensor | None = None) -> Matrix:
        return self.matrix(weight, bias)

    def prepare_gate_up(self, gate: Weight, up: Weight) -> Matrix:
        """One matrix of twice the rows: gate_0, up_0, gate_1, up_1, ..."""
        return self.matrix(interleave(join([gate, up])))

    def linear(self, x: Tensor, linear: Matrix) -> Tensor:
        return self._multiply(x, linear, is_gated=False)

    def gate_up(self, x: Tensor, gate_up: Matrix, deltas: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if deltas is None:
            return self._multiply(x, gate_up, is_gated=True)
        return self._gate(self._multiply(x, gate_up, is_gated=False), deltas)

    def _multiply(self, x: Tensor, matrix: Matrix, is_gated: bool) -> Tensor:
        check("x", x, matrix.dtype)
        n, (num_rows, width) = x.shape[0], matrix.shape
        is_few = n <= MOST_GEMV_ROWS or self.is_deterministic
        if not is_few and self.has_torch_product and _goes_by_torch(n, matrix):
            weight = self._unpack(matrix) if matrix.bits else matrix.weight
            products = x @ weight.T if matrix.added is None else torch.addmm(matrix.added, x, weight.T)
            return self._gate(products, None) if is_gated else products
        y = self.new(n, num_rows // 2 if is_gated else num_rows, dtype=x.dtype)
        added = x if matrix.added is None else matrix.added
        args = (y, *matrix.buffers, x, added, matrix.added is not None, n, num_rows, width)
        gated = "_swiglu" if is_gated else ""
        library = self.library("linear", matrix)
        if is_few:
            rows = GEMV_KERNEL_ROWS[min(n, MOST_GEMV_ROWS)]
            groups = -(-num_rows // GEMV_GROUP_ROWS), -(-n // rows)
            library.run(f"gemv{gated}_{rows}", groups, GEMV_THREADS, *args)
        else:
            library.run(f"qmm{gated}", (-(-num_rows // TILE), -(-n // TILE)), TILE_THREADS, *args)
        return y

    def _unpack(self, matrix: Matrix) -> Tensor:
        """W as dense numbers, in memory that the next one overwrites: the device works in order."""
        (num_rows, width), words = matrix.shape, matrix.weight.shape[1]
        size = num_rows * width
        if self._unpacked is None or self._unpacked.numel() < size or self._unpacked.dtype != matrix.dtype:
            self._unpacked = self.new(size, dtype=matrix.dtype)
        weight = self._unpacked[:size].view(num_rows, width)
        self.library("linear", matrix).run("dequant", (-(-words // 64), num_rows), 64, weight, *matrix.buffers, width)
        return weight

    def _gate(self, products: Tensor, deltas: tuple[Tensor, Tensor] | None) -> Tensor:
        """products [n, 2 N], gates and ups alternating -> [n, N]."""
        n, width = products.shape[0], products.shape[1] // 2
        y = self.new(n, width, dtype=products.dtype)
        gate_delta, up_delta = deltas or (products, products)
        library = self.kernels.load("linear", T=y.dtype, BITS=0, GROUP=32)
        args = y, products, gate_delta, up_delta, deltas is not None, width
        library.run("swiglu", (-(-width // 256), n), 256, *args)
        return y


def _goes_by_torch(n: int, matrix: Matrix) -> bool:
    if not matrix.bits:
        return n >= LEAST_ROWS_OF_TORCH
    return n >= LEAST_ROWS_TO_UNPACK and matrix.shape[0] * matrix.shape[1] <= MOST_UNPACKED


class EmbeddingOps(MatrixFamily):
    def prepare_embedding(self, weight: Weight) -> Matrix:
        if not isinstance(weight, Quantized) and weight.shape[1] % 4:
            raise invalid(f"an embedding of {weight.shape[1]} features: Metal's kernels take multiples of 4")
        return self.matrix(weight)

    def embed(self, tokens: Tensor, embedding: Matrix, last_tokens: Tensor | None = None) -> Tensor:
        check("tokens", tokens, torch.int32)
        ids = tokens, tokens if last_tokens is None else last_tokens
        n, width = tokens.shape[0], embedding.shape[1]
        x = self.new(n, width, dtype=embedding.dtype)
        if embedding.bits:
            words = embedding.weight.shape[1]
            library = self.library("linear", embedding)
            library.run("embed_packed", (-(-words // 64), n), 64, x, *embedding.buffers, *ids, width)
        else:
            library = self.kernels.load("embed", T=x.dtype, WIDTH=width)
            library.run("embed", (-(-width // 256), n), 64, x, embedding.weight, *ids)
        return x
