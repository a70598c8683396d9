"""The supported families of decoders, and their differences as a table.

Source: transformers 5 `models/*/configuration_*.py` (defaults) and `modeling_*.py` (biases, norms, windows, experts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.paged.base.json_fields import Fields

Windows = Callable[[Fields, int], tuple[int, ...]]
SLIDING = "sliding_attention"
LAYER_TYPES = (SLIDING, "full_attention")


@dataclass(frozen=True, slots=True)
class ExpertFields:
    """Names of a mixture's sizes in the config. What is not read is Mixtral's: every layer, renormalised weights, no
    shared expert."""

    num_experts: tuple[str, ...]
    per_token: int
    intermediate_size: str
    reads_renormalize: bool = False
    reads_layers: bool = False
    has_shared: bool = False


def no_windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
    return (0,) * num_layers


def windows_everywhere(default: int) -> Windows:
    """Mistral, Mixtral: `sliding_window` in every layer, null for none; `default` where it is missing."""

    def windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
        is_none = "sliding_window" in fields.values and not fields.has("sliding_window")
        return (0 if is_none else fields.integer("sliding_window", default),) * num_layers

    return windows


def windows_where_used(is_sliding: Callable[[int, int], bool]) -> Windows:
    """Qwen: only with `use_sliding_window`, by `layer_types` or, without them, by layer and `max_window_layers`."""

    def windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
        if not fields.boolean("use_sliding_window", False):
            return no_windows(fields, num_layers)
        window = fields.integer("sliding_window", 4096)
        types = fields.texts("layer_types")
        if not types:
            first_full = fields.integer("max_window_layers", 28, minimum=0)
            return tuple(window if is_sliding(at, first_full) else 0 for at in range(num_layers))
        if len(types) != num_layers or not set(types) <= set(LAYER_TYPES):
            raise fields.wrong("layer_types", f"{num_layers} of {', '.join(LAYER_TYPES)} are expected, not {types}")
        return tuple(window if each == SLIDING else 0 for each in types)

    return windows


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One architecture: how its config is read, and transformers' defaults for missing fields."""

    architecture: str
    model_type: str
    windows: Windows = no_windows
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_positions: int = 32768
    head_size: int | None = None  # without `head_dim`; None: hidden_size / num_attention_heads
    qk_norm: bool = False
    reads_attention_bias: bool = False  # `attention_bias`: of queries, keys, values and the output
    reads_mlp_bias: bool = False
    qkv_bias: bool | str = False  # of queries, keys and values alone; a text: the field's name, true by default
    experts: ExpertFields | None = None


FAMILIES = {
    family.architecture: family
    for family in (
        ModelFamily("LlamaForCausalLM", "llama", max_positions=2048, reads_attention_bias=True, reads_mlp_bias=True),
        ModelFamily("MistralForCausalLM", "mistral", windows=windows_everywhere(4096), max_positions=131072),
        ModelFamily(
            "Qwen2ForCausalLM", "qwen2", windows=windows_where_used(lambda at, first: at >= first), qkv_bias=True
        ),
        ModelFamily(
            "Qwen3ForCausalLM",
            "qwen3",
            windows=windows_where_used(lambda at, first: at >= first),
            head_size=128,
            qk_norm=True,
            reads_attention_bias=True,
        ),
        ModelFamily(
            "MixtralForCausalLM",
            "mixtral",
            windows=windows_everywhere(0),
            rms_norm_eps=1e-5,
            rope_theta=1e6,
            max_positions=131072,
            experts=ExpertFields(("num_local_experts", "num_experts"), 2, "intermediate_size"),
        ),
        ModelFamily(
            "Qwen2MoeForCausalLM",
            "qwen2_moe",
            windows=windows_where_used(lambda at, first: at % 2 == 0 and at < first),
            qkv_bias="qkv_bias",
            experts=ExpertFields(("num_experts",), 4, "moe_intermediate_size", True, True, has_shared=True),
        ),
        ModelFamily(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            windows=windows_where_used(lambda at, first: True),
            qk_norm=True,
            reads_attention_bias=True,
            experts=ExpertFields(("num_experts", "num_local_experts"), 8, "moe_intermediate_size", True, True),
        ),
    )
}


def family_of(fields: Fields) -> ModelFamily:
    """By the first of `architectures`, or by `model_type` where there is none.

    Raises: EngineError that lists what is supported.
    """
    architectures = fields.texts("architectures")
    if architectures:
        name, family = "architectures", FAMILIES.get(architectures[0])
        architecture_name = architectures[0]
    else:
        name, architecture_name = "model_type", fields.text("model_type", "")
        family = next((family for family in FAMILIES.values() if family.model_type == architecture_name), None)
    if family is None:
        raise fields.wrong(name, f"'{architecture_name}' is not supported; {', '.join(FAMILIES)} are")
    return family
