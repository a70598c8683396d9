"""A decoder's shape in one vocabulary for all families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotation of positions beyond the trained ones; fields that a kind does not use have their defaults."""

    kind: str  # linear | llama3 | yarn
    factor: float
    original_max_positions: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    attention_factor: float = 1.0  # yarn: factor of cos and sin
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts. `layers` are the indices of the layers that have it."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    renormalize: bool
    layers: frozenset[int]
    shared_intermediate_size: int = 0  # Qwen2-MoE's shared expert, with a sigmoid gate; 0: none


@dataclass(frozen=True, slots=True)
class QuantizationSpec:
    """MLX's affine quantization: the folder's, and modules that differ (None: dense)."""

    bits: int
    group_size: int
    overrides: Mapping[str, tuple[int, int] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One decoder. Sizes in features, lengths in tokens."""

    architecture: str  # as config.json names it: LlamaForCausalLM
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    rope_theta: float
    rotary_size: int  # <= head_size
    max_positions: int
    windows: tuple[int, ...]  # by layer: the sliding window, 0 for none
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    dtype: str = "float32"
    quantization: QuantizationSpec | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def kv_bytes_per_token(self) -> int:
        """Of all layers, keys and values, in the model's dtype."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_size * (4 if self.dtype == "float32" else 2)
