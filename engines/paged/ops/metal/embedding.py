"""Token ids to rows of the embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.ops.interface import Quantized, Weight
from engines.paged.ops.metal.base import check
from engines.paged.ops.metal.matrix import Matrix, MatrixFamily


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
