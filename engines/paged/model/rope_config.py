"""How positions are rotated: `rope_theta` and `rope_scaling`, since transformers 5 `rope_parameters`."""

from __future__ import annotations

import math

from engines.paged.model.config import RopeScaling
from engines.paged.model.fields import Fields

KINDS = ("default", "linear", "llama3", "yarn")


def read_rope(fields: Fields, default_theta: float, max_positions: int) -> tuple[float, RopeScaling | None, int]:
    """The base, how it is stretched, and how many positions there are then: `max_position_embeddings`, or the factor
    times `original_max_position_embeddings` where that is written and is more (Qwen2.5's long contexts).

    Raises: EngineError for an unknown kind, one that differs by layer, and sizes that cannot be.
    """
    names = [name for name in ("rope_scaling", "rope_parameters") if fields.has(name)]
    if not names:
        return fields.number("rope_theta", default_theta), None, max_positions
    rope = fields.table(names[0])
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise fields.wrong(names[0], "rotations that differ by layer are not supported")
    theta = rope.number("rope_theta", fields.number("rope_theta", default_theta))
    name = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(name, "default")
    if kind not in KINDS:
        raise rope.wrong(name, f"'{kind}' is not supported; {', '.join(KINDS)} are")
    if rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0)) != 1.0:
        raise rope.wrong("partial_rotary_factor", "a part of a head is not rotated by these architectures")
    if kind == "default":
        return theta, None, max_positions
    original = fields if fields.has("original_max_position_embeddings") else rope
    original_max = original.integer("original_max_position_embeddings", max_positions)
    scaling = _scaling(rope, kind, original_max, max_positions)
    if kind != "llama3" and original.has("original_max_position_embeddings"):
        max_positions = max(max_positions, int(scaling.factor * original_max))
    return theta, scaling, max_positions


def _scaling(rope: Fields, kind: str, original_max: int, max_positions: int) -> RopeScaling:
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"), original_max)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise rope.wrong("high_freq_factor", f"{high:g} is not above low_freq_factor, {low:g}")
        return RopeScaling("llama3", rope.number("factor"), original_max, low_freq_factor=low, high_freq_factor=high)
    factor = rope.number("factor", max_positions / original_max)
    return RopeScaling(
        "yarn",
        factor,
        original_max,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=_attention_factor(rope, factor),
        truncate=rope.boolean("truncate", True),
    )


def _attention_factor(rope: Fields, factor: float) -> float:
    """YaRN's: written, or by `mscale` and `mscale_all_dim` (DeepSeek's), or 0.1 ln(factor) + 1."""

    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        return scale(rope.number("mscale")) / scale(rope.number("mscale_all_dim"))
    return scale(1.0)
