"""The network: a Llama of a few million parameters, as transformers builds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes in features, `context` in tokens. The defaults make 3.5 million parameters: 7 MB in 16 bits.

    Every size is a multiple of 64, the head's included: kernels and groups of quantized weights divide them.
    """

    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 5
    heads: int = 4
    key_value_heads: int = 2
    head: int = 64
    mlp: int = 512
    context: int = 1024


def build(shape: Shape, end: int, seed: int) -> LlamaForCausalLM:
    """The network with seeded random weights, embeddings tied; `end` is the token that ends a text.

    Layers that write into the residual stream start small, as GPT-2's do, so that depth does not make it louder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    torch.manual_seed(seed)
    # Written out, attention is compiled into the rest; the fused one of the CPU is slow backwards.
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_((2 * shape.layers) ** -0.5)
    return model


def num_parameters(model: LlamaForCausalLM) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
