"""The network: a small Llama in plain torch, written to be trained on a CPU.

Weights are float32 and everything is computed in bfloat16, which processors with matrix units multiply ten times as
fast; torch.compile fuses operations to save passes through memory. Its tensors are transformers' Llama's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100  # a label without a loss: padding
ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-5
_COMPUTED = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes in features, `context` in tokens. The defaults make 2.2 million parameters: 4.3 MB in 16 bits.

    Every size is a multiple of 64, the head's included: kernels and groups of quantized weights divide them.
    """

    vocabulary: int = 2048
    hidden: int = 192
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    head: int = 64
    mlp: int = 512
    context: int = 1024


class Network(nn.Module):
    """A Llama with tied embeddings. Weights are seeded and random; those that write into the residual stream start
    small, so that its scale does not grow with depth."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.embedding = _matrix(shape.vocabulary, shape.hidden, 0.02, chance)
        self.layers = nn.ModuleList(_Layer(shape, chance) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def tensors(self) -> dict[str, nn.Parameter]:
        """The weights by transformers' names."""
        named = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            named |= {f"model.layers.{number}.{name}.weight": one for name, one in layer.tensors().items()}
        return named

    def logits(self, tokens: Tensor) -> Tensor:
        """[rows, width] int64 -> [rows, width, vocabulary] bfloat16."""
        width = tokens.shape[1]
        embedding = self.embedding.to(_COMPUTED)
        states = functional.embedding(tokens, embedding)
        cosines, sines = _rotations(width, self.shape.head)
        hidden = torch.ones(width, width, dtype=torch.bool).triu(1)
        for layer in self.layers:
            states = layer(states, cosines, sines, hidden)
        return _normed(states, self.norm) @ embedding.T

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of the labels [rows, width], in nats: each is predicted from the tokens before it."""
        logits = self.logits(tokens)[:, :-1].float()
        return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


class _Layer(nn.Module):
    """Attention in which heads share keys and values, then a gated MLP; each adds to the residual stream."""

    def __init__(self, shape: Shape, chance: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        hidden, inside, shared = shape.hidden, shape.heads * shape.head, shape.key_value_heads * shape.head
        usual, quiet = 0.02, 0.02 * (2 * shape.layers) ** -0.5
        self.query = _matrix(inside, hidden, usual, chance)
        self.key = _matrix(shared, hidden, usual, chance)
        self.value = _matrix(shared, hidden, usual, chance)
        self.out = _matrix(hidden, inside, quiet, chance)
        self.gate = _matrix(shape.mlp, hidden, usual, chance)
        self.up = _matrix(shape.mlp, hidden, usual, chance)
        self.down = _matrix(hidden, shape.mlp, quiet, chance)
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.mlp_norm = nn.Parameter(torch.ones(hidden))

    def tensors(self) -> dict[str, nn.Parameter]:
        return {
            "self_attn.q_proj": self.query,
            "self_attn.k_proj": self.key,
            "self_attn.v_proj": self.value,
            "self_attn.o_proj": self.out,
            "mlp.gate_proj": self.gate,
            "mlp.up_proj": self.up,
            "mlp.down_proj": self.down,
            "input_layernorm": self.attention_norm,
            "post_attention_layernorm": self.mlp_norm,
        }

    def forward(self, states: Tensor, cosines: Tensor, sines: Tensor, hidden: Tensor) -> Tensor:
        """states [rows, width, features]; `hidden` [width, width] marks the keys that a query must not see."""
        states = states + self._attend(_normed(states, self.attention_norm), cosines, sines, hidden)
        both = _normed(states, self.mlp_norm) @ torch.cat((self.gate, self.up)).to(_COMPUTED).T
        gate, up = both.chunk(2, -1)
        return states + (functional.silu(gate) * up) @ self.down.to(_COMPUTED).T

    def _attend(self, states: Tensor, cosines: Tensor, sines: Tensor, hidden: Tensor) -> Tensor:
        """Plain operations instead of torch's fused attention, which is slow in the backward pass on a CPU. Queries of
        heads that share keys are rows of one product."""
        shape, (rows, width, _) = self.shape, states.shape
        groups, each = shape.key_value_heads, shape.heads // shape.key_value_heads
        projected = states @ torch.cat((self.query, self.key, self.value)).to(_COMPUTED).T
        heads = projected.view(rows, width, -1, shape.head).transpose(1, 2)
        query, key, value = heads.split((shape.heads, groups, groups), 1)
        query, key = _rotated(query, cosines, sines), _rotated(key, cosines, sines)
        scores = query.reshape(rows, groups, each * width, shape.head) @ key.transpose(-1, -2)
        scores = scores.view(rows, groups, each, width, width) * shape.head**-0.5
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = weights.view(rows, groups, each * width, width) @ value
        mixed = mixed.view(rows, shape.heads, width, shape.head).transpose(1, 2).reshape(rows, width, -1)
        return mixed @ self.out.to(_COMPUTED).T


def _matrix(rows: int, columns: int, deviation: float, chance: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns, generator=chance) * deviation)


def _normed(states: Tensor, weight: Tensor) -> Tensor:
    """Root mean square norm, computed in float32."""
    exact = states.float()
    scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return (exact * scale * weight).to(_COMPUTED)


def _rotations(width: int, head: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [width, head / 2] of rotary embeddings (Su et al., 2021)."""
    frequencies = ROPE_BASE ** -(torch.arange(0, head, 2).float() / head)
    angles = torch.arange(width).float()[:, None] * frequencies
    return angles.cos().to(_COMPUTED), angles.sin().to(_COMPUTED)


def _rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Feature i turns with feature i + head / 2, as transformers has it."""
    first, second = heads.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)
