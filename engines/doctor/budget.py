"""Which popular language models fit into this machine's memory, by the formulas that the engine plans with."""

from __future__ import annotations

from dataclasses import dataclass

from engines.doctor.finding import Finding, ok, warn
from engines.doctor.system import printed
from engines.paged.base.options import EngineOptions
from engines.paged.cache.claims import MemoryClaims
from engines.paged.cache.memory import available_memory, plan_memory, readable, total_memory
from engines.paged.device import choose_device
from engines.paged.model.config import DecoderConfig, Experts

# One conversation of this many tokens at least, and a few seats: enough for one user.
CONTEXT, SEATS, BLOCK = 8192, 8, 16
# Bytes a weight: packed ones have a scale and an offset of 16 bits for each group of 64 (--quantize-group).
BYTES_PER_WEIGHT = {"fp16": 2.0, "int8": 1 + 4 / 64, "int4": 0.5 + 4 / 64}
FITS, TIGHT, NO = "fits", "tight", "no"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model by its published config.json. `num_weights` is computed from it."""

    name: str
    config: DecoderConfig

    @property
    def num_weights(self) -> int:
        c = self.config
        attention = c.hidden_size * c.head_size * (2 * c.num_heads + 2 * c.num_kv_heads)
        mlp = 3 * c.hidden_size * c.intermediate_size
        if c.experts is not None:
            each = 3 * c.hidden_size * c.experts.intermediate_size
            mlp = c.experts.num_experts * (each + c.hidden_size)  # with the router's row
        tables = (1 if c.tie_embeddings else 2) * c.vocab_size * c.hidden_size
        return tables + c.num_layers * (attention + mlp)

    def needed_bytes(self, kind: str, device_type: str) -> int:
        """Weights, workspace, and the cache of one context of CONTEXT tokens."""
        options = EngineOptions(
            max_sequences=SEATS,
            max_context=CONTEXT,
            num_blocks=CONTEXT // BLOCK,
            block_size=BLOCK,
            quantize=None if kind == "fp16" else kind,
        )
        weights = int(self.num_weights * BYTES_PER_WEIGHT[kind])
        return plan_memory(self.config, options, weights, 0, CONTEXT, device_type=device_type).total_bytes


def _config(
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    head_size: int = 128,
    tied: bool = False,
    experts: Experts | None = None,
) -> DecoderConfig:
    return DecoderConfig(
        architecture="",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        rotary_size=head_size,
        max_positions=32_768,
        windows=(0,) * layers,
        tie_embeddings=tied,
        experts=experts,
        dtype="float16",
    )


def _experts(number: int, used: int, width: int, layers: int) -> Experts:
    return Experts(number, used, width, True, frozenset(range(layers)))


PUBLISHED_MODELS = (
    PublishedModel("Llama 3.2 1B", _config(16, 2048, 8192, 32, 8, 128_256, head_size=64, tied=True)),
    PublishedModel("Llama 3.2 3B", _config(28, 3072, 8192, 24, 8, 128_256, tied=True)),
    PublishedModel("Qwen3 4B", _config(36, 2560, 9728, 32, 8, 151_936, tied=True)),
    PublishedModel("Mistral 7B", _config(32, 4096, 14_336, 32, 8, 32_768)),
    PublishedModel("Qwen2.5 7B", _config(28, 3584, 18_944, 28, 4, 152_064)),
    PublishedModel("Llama 3.1 8B", _config(32, 4096, 14_336, 32, 8, 128_256)),
    PublishedModel("Qwen3 8B", _config(36, 4096, 12_288, 32, 8, 151_936)),
    PublishedModel("Qwen2.5 14B", _config(48, 5120, 13_824, 40, 8, 152_064)),
    PublishedModel("Qwen3 30B-A3B", _config(48, 2048, 6144, 32, 4, 151_936, experts=_experts(128, 8, 768, 48))),
    PublishedModel("Qwen2.5 32B", _config(64, 5120, 27_648, 40, 8, 152_064)),
    PublishedModel("Mixtral 8x7B", _config(32, 4096, 14_336, 32, 8, 32_000, experts=_experts(8, 2, 14_336, 32))),
    PublishedModel("Llama 3.3 70B", _config(80, 8192, 28_672, 64, 8, 128_256)),
)


def verdict(needed: int, available: int, total: int) -> str:
    """fits: in the free memory; tight: in the memory of the device, without other programs."""
    return FITS if needed <= available else TIGHT if needed <= total else NO


def budget() -> Finding:
    """The memory that an engine would take now, and a table of the models that fit."""
    device = choose_device("auto")
    with MemoryClaims().planning() as claimed:
        available, total = available_memory(device, 0, claimed), total_memory(device)
    table = {
        model.name: {
            kind: verdict(model.needed_bytes(kind, device.type), available, total) for kind in BYTES_PER_WEIGHT
        }
        for model in PUBLISHED_MODELS
    }
    sizes = {
        model.name: {kind: round(model.needed_bytes(kind, device.type) / _GIB, 1) for kind in BYTES_PER_WEIGHT}
        for model in PUBLISHED_MODELS
    }
    text = f"{readable(available)} for engines now, of {readable(total)} that {device.type} may have"
    text += f", less {readable(claimed)} that engines here have claimed" if claimed else ""
    if device.type == "mps":
        wired = printed("sysctl", "-n", "iogpu.wired_limit_mb")
        text += f"; iogpu.wired_limit_mb {wired.text}" if wired.is_good else ""
    largest = [f"{name} {kind}" for name, kinds in table.items() for kind, fit in kinds.items() if fit == FITS]
    figures = {
        "available": available,
        "claimed": claimed,
        "total": total,
        "context": CONTEXT,
        "models": table,
        "gib": sizes,
    }
    if not largest:
        return warn(f"{text}: none of {len(PUBLISHED_MODELS)} popular models fits", "close other programs", **figures)
    return ok(f"{text}: {len(largest)} of {3 * len(PUBLISHED_MODELS)} popular models and sizes fit", **figures)
