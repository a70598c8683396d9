"""What a step must read from memory: every weight once, and the keys and values of each sequence.

Decoding few sequences does little arithmetic on each number read, so that this, over the machine's bandwidth, is the
least time a step can take.
"""

from __future__ import annotations

from engines.paged.model.config import DecoderConfig

SCHEME_BITS = {"int8": 8, "int4": 4}
# A scale and a bias for each group.
NUMBERS_PER_GROUP = 2


def element_bytes(config: DecoderConfig) -> int:
    return 4 if config.dtype == "float32" else 2


def weight_bytes_per_step(
    config: DecoderConfig, num_sequences: int, quantize: str | None = None, group: int = 64
) -> float:
    """Of all layers and of the head; of the embedding's table a step reads but a row a sequence. Of a mixture as many
    experts as so many sequences are expected to choose, each by itself."""
    attention = config.hidden_size * config.head_size * (2 * config.num_heads + 2 * config.num_kv_heads)
    experts = config.experts
    sparse = len(experts.layers) if experts is not None else 0
    elements = config.num_layers * attention + config.vocab_size * config.hidden_size
    elements += (config.num_layers - sparse) * 3 * config.hidden_size * config.intermediate_size
    numbers = elements * _bytes_per_weight(config, quantize, group)
    if experts is not None:
        unchosen = (1 - experts.experts_per_token / experts.num_experts) ** num_sequences
        inner = experts.num_experts * (1 - unchosen) * experts.intermediate_size + experts.shared_intermediate_size
        numbers += sparse * 3 * config.hidden_size * inner * _bytes_per_weight(config, quantize, group)
        numbers += sparse * config.hidden_size * experts.num_experts * element_bytes(config)  # who chooses
    return numbers


def cache_bytes_per_step(config: DecoderConfig, num_sequences: int, context_tokens: float) -> float:
    """Keys and values that so many sequences of this length read; a layer with a window reads no more than that."""
    per_layer = 2 * config.num_kv_heads * config.head_size * element_bytes(config)
    seen = sum(min(context_tokens, window) if window else context_tokens for window in config.windows)
    return num_sequences * per_layer * seen


def _bytes_per_weight(config: DecoderConfig, quantize: str | None, group: int) -> float:
    """With scales and biases where there are some. Modules that a folder left dense count as the others."""
    if config.quantization is not None:
        bits, group = config.quantization.bits, config.quantization.group_size
    elif quantize is not None:
        bits = SCHEME_BITS[quantize]
    else:
        return element_bytes(config)
    return bits / 8 + NUMBERS_PER_GROUP * element_bytes(config) / group
