"""What the kernels of one model are specialised by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engines.errors import invalid
from engines.paged.model.config import ModelConfig

METAL_TYPES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in features; `gpu_cores` and `is_deterministic` choose how decoding splits a context, not what it computes."""

    dtype: torch.dtype
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rotary_size: int
    block_size: int
    gpu_cores: int = 10  # where none is known: an M4's
    is_deterministic: bool = False  # a row's result does not depend on what else is in its step

    def __post_init__(self) -> None:
        if self.dtype not in METAL_TYPES:
            raise invalid(f"Metal computes in float32, float16 or bfloat16, not in {self.dtype}")
        if self.hidden_size % 4 or self.head_size % 8 or self.rotary_size % 2:
            raise invalid(
                f"hidden_size {self.hidden_size} must be a multiple of 4, head_size {self.head_size} of 8 and "
                f"rotary_size {self.rotary_size} of 2"
            )
        if self.num_heads % self.num_kv_heads:
            raise invalid(f"{self.num_heads} query heads are no multiple of {self.num_kv_heads} key-value heads")

    @property
    def metal_type(self) -> str:
        return METAL_TYPES[self.dtype]

    @classmethod
    def of(
        cls, config: ModelConfig, block_size: int, gpu_cores: int = 10, is_deterministic: bool = False
    ) -> ModelShape:
        return cls(
            dtype=getattr(torch, config.dtype),
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            rotary_size=config.rotary_size,
            block_size=block_size,
            gpu_cores=gpu_cores,
            is_deterministic=is_deterministic,
        )
