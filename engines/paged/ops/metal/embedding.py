"""Token ids to rows of the embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engines.paged.ops.contract import Dense, Weight
from engines.paged.ops.metal.family import Family


class EmbeddingOps(Family):
    def prepare_embedding(self, weight: Weight) -> Any:
        assert isinstance(weight, Dense)
        return Dense(weight.weight.to(self.device, self.shape.dtype).contiguous())

    def embed(self, tokens: Tensor, embedding: Any) -> Tensor:
        self.check("tokens", tokens, torch.int32)
        n, width = tokens.shape[0], embedding.shape[1]
        x = self.new(n, width)
        library = self.kernels.load("embed", T=self.shape.metal_type, WIDTH=width)
        library.run("embed", (-(-width // 256), n), 64, x, embedding.weight, tokens)
        return x
