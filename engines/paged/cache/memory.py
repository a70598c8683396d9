"""The memory plan of an engine (weights, cache, workspace), and the cache's tensors.

All memory is taken before the first request: an engine that grows while it serves takes a Mac down (ENGINE.md A5).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engines.core.errors import EngineError, ErrorCode
from engines.paged.base.options import EngineOptions
from engines.paged.model.config import DecoderConfig
from engines.paged.ops.metal.linear import LEAST_ROWS_OF_TORCH, LEAST_ROWS_TO_UNPACK, MOST_UNPACKED

GIB = 1 << 30
MIB = 1 << 20
# Of the free memory, by default: the rest is for other programs.
DEFAULT_SHARE = {"cuda": 0.9, "mps": 0.8, "cpu": 0.5}
# Activations that live at one time: hidden, residual, normed, queries, attention, two of the MLP's width.
_HIDDEN_WIDTHS = 6
_FLOAT_BYTES = 4
_LOGIT_COPIES = 3  # float32 logits, their filtered copy, the noise
# On a Mac without --memory-gb the cache has room for this many whole contexts, or this many tokens per seat, whichever
# is more. A cache is filled with zeros at the start and stays in memory: more would be taken from other programs and
# rarely used.
MAC_CONTEXTS, MAC_SEAT_TOKENS = 2, 2048


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of each part, and the size of the cache."""

    budget_bytes: int
    weight_bytes: int
    workspace_bytes: int
    block_bytes: int
    num_blocks: int  # the null block included
    block_size: int

    @property
    def cache_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def cache_tokens(self) -> int:
        return (self.num_blocks - 1) * self.block_size

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.workspace_bytes

    def __str__(self) -> str:
        return (
            f"{readable(self.total_bytes)} = weights {readable(self.weight_bytes)} "
            f"+ cache {readable(self.cache_bytes)} ({self.cache_tokens:,} tokens in blocks of {self.block_size}) "
            f"+ workspace {readable(self.workspace_bytes)}"
        )


def readable(num_bytes: int) -> str:
    """A size for people: 1.24 GiB, 37 MiB."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{max(1, round(num_bytes / MIB))} MiB"


def plan_memory(
    config: DecoderConfig,
    options: EngineOptions,
    weight_bytes: int,
    available_bytes: int,
    max_context: int,
    draft_bytes_per_token: int = 0,
    device_type: str = "cpu",
) -> MemoryPlan:
    """Divide the budget: --memory-gb, or a share of what is available beside the weights. The cache takes what weights
    and workspace leave, up to a whole context per seat; on a Mac without --memory-gb up to MAC_CONTEXTS or
    MAC_SEAT_TOKENS.

    Raises: EngineError where not even one context fits; it names the memory needed.
    """
    element_bytes = 4 if config.dtype == "float32" else 2
    block_bytes = options.block_size * (config.kv_bytes_per_token + draft_bytes_per_token)
    rows = options.max_batch_tokens
    widest = max(config.intermediate_size, config.num_heads * config.head_size)
    activations_of_row = (_HIDDEN_WIDTHS * config.hidden_size + 3 * widest) * element_bytes
    activations = rows * activations_of_row
    # What attention gathers for one layer at a time.
    gathered = 2 * max_context * config.num_kv_heads * config.head_size * element_bytes
    logits = _LOGIT_COPIES * options.max_sequences * config.vocab_size * _FLOAT_BYTES
    workspace = activations + gathered + logits
    if device_type == "mps":
        workspace += _unpacked_bytes(config, options, element_bytes)
        workspace += _replay_bytes(
            config, options, activations_of_row + config.vocab_size * (element_bytes + _FLOAT_BYTES)
        )
    budget = int(options.memory_gb * GIB) if options.memory_gb is not None else available_bytes
    blocks_of_context = -(-max_context // options.block_size)
    most_blocks = options.max_sequences * blocks_of_context + 1
    if device_type == "mps" and options.memory_gb is None:
        seats = options.max_sequences * -(-MAC_SEAT_TOKENS // options.block_size)
        most_blocks = min(most_blocks, max(MAC_CONTEXTS * blocks_of_context, seats) + 1)
    num_blocks = min(most_blocks, (budget - weight_bytes - workspace) // block_bytes)
    if options.num_blocks is not None:
        num_blocks = options.num_blocks + 1
    if num_blocks < blocks_of_context + 1:
        least = weight_bytes + workspace + (blocks_of_context + 1) * block_bytes
        raise EngineError(
            ErrorCode.UNAVAILABLE,
            f"the model needs {readable(least)} for one context of {max_context} tokens (weights "
            f"{readable(weight_bytes)}, workspace {readable(workspace)}, {block_bytes} bytes a block of "
            f"{options.block_size} tokens), and has {readable(budget)}: raise memory_gb, or lower max_context or "
            "max_batch_tokens, or quantize",
        )
    return MemoryPlan(budget, weight_bytes, workspace, block_bytes, int(num_blocks), options.block_size)


def _unpacked_bytes(config: DecoderConfig, options: EngineOptions, element_bytes: int) -> int:
    """The scratch for unpacked matrices of prompts (ops/metal/linear.py): as large as the largest."""
    if options.deterministic or not _is_packed(config, options):
        return 0
    rows = max(2 * config.intermediate_size, (config.num_heads + 2 * config.num_kv_heads) * config.head_size)
    return min(MOST_UNPACKED, rows * config.hidden_size) * element_bytes


def _replay_bytes(config: DecoderConfig, options: EngineOptions, bytes_of_row: int) -> int:
    """Activations and logits of captured decoding steps (ops/metal/replay.py), rounded up to a power of two. Steps in
    which torch multiplies are not captured."""
    if options.deterministic:
        return 0
    most_rows = (LEAST_ROWS_TO_UNPACK if _is_packed(config, options) else LEAST_ROWS_OF_TORCH) - 1
    return 1 << (min(options.max_sequences, most_rows) * bytes_of_row - 1).bit_length()


def _is_packed(config: DecoderConfig, options: EngineOptions) -> bool:
    return options.quantize is not None or config.quantization is not None


def available_memory(device: torch.device, weight_bytes: int, claimed_bytes: int = 0) -> int:
    """The memory for weights, cache and workspace without --memory-gb; `weight_bytes` are in use already,
    `claimed_bytes` belong to other engines of this machine, in use or not yet.

    A Mac's GPU uses the machine's memory: at most what Metal recommends less the claims, and never more than is free.
    """
    share = DEFAULT_SHARE[device.type]
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return weight_bytes + int(share * free)
    _, free = _ram()
    own = torch.mps.driver_allocated_memory() if device.type == "mps" else 0
    return weight_bytes + int(share * max(0, min(free, total_memory(device) - own - claimed_bytes)))


def total_memory(device: torch.device) -> int:
    """All memory that engines on a device can have together; on a Mac's GPU what Metal recommends."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return int(torch.mps.recommended_max_memory()) if device.type == "mps" else _ram()[0]


def _ram() -> tuple[int, int]:
    """Total and free memory of this machine, or of the cgroup where that is less."""
    import psutil

    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit, usage = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        text = limit.read_text().strip()
        if text != "max":
            total, free = min(total, int(text)), min(free, int(text) - int(usage.read_text()))
    except (OSError, ValueError):
        pass
    return total, free


class KVCache:
    """Keys and values of all layers, allocated once: [layers, blocks, S, G, D] each."""

    def __init__(self, config: DecoderConfig, num_blocks: int, block_size: int, device: torch.device) -> None:
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_size)
        dtype = getattr(torch, config.dtype)
        # Zeros: padding is read with weight 0, and NaN would survive that.
        self.keys: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.values: Tensor = torch.zeros(shape, dtype=dtype, device=device)
