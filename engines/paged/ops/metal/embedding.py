"""Token ids to rows of the embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engines.errors import invalid
from engines.paged.ops.contract import Dense, Weight
from engines.paged.ops.metal.family import Family, check


class EmbeddingOps(Family):
    def prepare_embedding(self, weight: Weight) -> Any:
        assert isinstance(weight, Dense)
        if weight.shape[1] % 4:
            raise invalid(f"an embedding of {weight.shape[1]} features: Metal's kernels take multiples of 4")
        return Dense(self.weight(weight.weight))

    def embed(self, tokens: Tensor, embedding: Any) -> Tensor:
        check("tokens", tokens, torch.int32)
        n, width = tokens.shape[0], embedding.shape[1]
        x = self.new(n, width, dtype=embedding.weight.dtype)
        library = self.kernels.load("embed", T=x.dtype, WIDTH=width)
        library.run("embed", (-(-width // 256), n), 64, x, embedding.weight, tokens)
        return x
