"""LoRA adapters in PEFT's format (adapter_config.json, adapter_model.safetensors), for a base of any format.

A module's change is B A x, times alpha / r, or alpha / sqrt(r) with `use_rslora`. Where the decoder has fused several
modules into one matrix (queries, keys, values; gate, up), their A are stacked and their B are blocks of one matrix, so
that a row's change is two products for any number of modules.
Source: PEFT `tuners/lora/config.py`, `layer.py`, `utils/save_and_load.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.base.json_fields import Fields
from engines.paged.model.adapters import Adapter, LowRank, Site
from engines.paged.model.config import DecoderConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.\w+)?\.weight")
_MODULE = re.compile(r"(?:model\.)?layers\.(?P<layer>\d+)\.(?P<target>.+)")
TARGETS = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"


@dataclass(frozen=True, slots=True)
class _Target:
    """A module's place in the decoder: its matrix, the first and number of its rows, the matrix's rows, and its input
    size."""

    site: Site
    first_row: int
    num_rows: int
    site_rows: int
    columns: int


def load_adapter(name: str, directory: Path, config: DecoderConfig, device: torch.device) -> Adapter:
    """One adapter for a decoder of this config, in the decoder's dtype.

    Raises: EngineError that names file and field or tensor: unsupported features of PEFT (DoRA, biases, saved modules,
    embeddings, experts), modules that the decoder does not have, wrong sizes, missing halves.
    """
    fields = Fields.of_file(directory / CONFIG)
    _refuse_other_kinds(fields)
    path = directory / WEIGHTS
    halves = _read_halves(path)
    changes: dict[tuple[int, Site], list[tuple[_Target, Tensor, Tensor]]] = defaultdict(list)
    for module in sorted(halves):
        layer, target = _target(path, module, config)
        down, up = _pair(path, module, halves[module], target)
        scale = _scale(fields, module, down.shape[0])
        changes[layer, target.site].append((target, down.float(), up.float() * scale))
    dtype = getattr(torch, config.dtype)
    fused = {key: _fuse(parts, device, dtype) for key, parts in changes.items()}
    num_bytes = sum(each.down.nbytes + each.up.nbytes for each in fused.values())
    return Adapter(name, fused, _fingerprint(directory), num_bytes)


def _refuse_other_kinds(fields: Fields) -> None:
    if (kind := fields.text("peft_type", "LORA")) != "LORA":
        raise fields.wrong("peft_type", f"'{kind}' is not supported; LORA is")
    for name in ("use_dora", "lora_bias", "fan_in_fan_out", "use_qalora", "alora_invocation_tokens"):
        if fields.values.get(name):
            raise fields.wrong(name, "is not supported; merge the adapter into its base")
    if (bias := fields.text("bias", "none")) != "none":
        raise fields.wrong("bias", f"'{bias}' is not supported; none is")
    for name in ("modules_to_save", "target_parameters", "trainable_token_indices", "layer_replication"):
        if fields.values.get(name):
            raise fields.wrong(name, f"{fields.values[name]!r} is not supported; merge the adapter into its base")


def _read_halves(path: Path) -> dict[str, dict[str, Tensor]]:
    """A and B by module."""
    if not path.is_file():
        raise invalid(f"{path} is not there: an adapter is a folder with {CONFIG} and {WEIGHTS}")
    halves: dict[str, dict[str, Tensor]] = defaultdict(dict)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                match = _KEY.fullmatch(key)
                if match is None:
                    raise invalid(f"{path}: {key} is neither a lora_A nor a lora_B of a linear module: not supported")
                halves[match["module"]][match["half"]] = file.get_tensor(key)
    except (SafetensorError, OSError) as error:
        raise invalid(f"{path}: {error}") from error
    if not halves:
        raise invalid(f"{path}: no tensors in it")
    return halves


def _target(path: Path, module: str, config: DecoderConfig) -> tuple[int, _Target]:
    match = _MODULE.fullmatch(module)
    if match is None:
        raise invalid(f"{path}: {module}: adapters of this module are not supported; of layers' {TARGETS} they are")
    layer = int(match["layer"])
    if layer >= config.num_layers:
        raise invalid(f"{path}: {module}: the base has {config.num_layers} layers")
    targets = _targets(config, layer)
    if match["target"] not in targets:
        names = ", ".join(targets)
        raise invalid(f"{path}: {module}: adapters of this module are not supported; of this layer's {names} they are")
    return layer, targets[match["target"]]


def _targets(config: DecoderConfig, layer: int) -> Mapping[str, _Target]:
    hidden, size = config.hidden_size, config.head_size
    queries, keys = config.num_heads * size, config.num_kv_heads * size
    all_rows = queries + 2 * keys
    targets = {
        "self_attn.q_proj": _Target(Site.QKV, 0, queries, all_rows, hidden),
        "self_attn.k_proj": _Target(Site.QKV, queries, keys, all_rows, hidden),
        "self_attn.v_proj": _Target(Site.QKV, queries + keys, keys, all_rows, hidden),
        "self_attn.o_proj": _Target(Site.OUTPUT, 0, hidden, hidden, queries),
    }
    if config.experts is None or layer not in config.experts.layers:
        return targets | _mlp_targets("mlp", config.intermediate_size, hidden, Site.GATE_UP, Site.DOWN)
    if inner := config.experts.shared_intermediate_size:
        return targets | _mlp_targets("mlp.shared_expert", inner, hidden, Site.SHARED_GATE_UP, Site.SHARED_DOWN)
    return targets


def _mlp_targets(path: str, inner: int, hidden: int, gate_up: Site, down: Site) -> dict[str, _Target]:
    return {
        f"{path}.gate_proj": _Target(gate_up, 0, inner, 2 * inner, hidden),
        f"{path}.up_proj": _Target(gate_up, inner, inner, 2 * inner, hidden),
        f"{path}.down_proj": _Target(down, 0, hidden, hidden, inner),
    }


def _pair(path: Path, module: str, halves: Mapping[str, Tensor], target: _Target) -> tuple[Tensor, Tensor]:
    """A [r, K] and B [N, r] of one module."""
    for half in "AB":
        if half not in halves:
            raise invalid(f"{path}: {module}: lora_{half} is missing")
        if not torch.isfinite(halves[half]).all():
            raise invalid(f"{path}: {module}: there is NaN or infinity in lora_{half}")
    down, up = halves["A"], halves["B"]
    rank = down.shape[0]
    for half, tensor, expected in (("A", down, (rank, target.columns)), ("B", up, (target.num_rows, rank))):
        if tuple(tensor.shape) != expected:
            shapes = f"of shape {list(tensor.shape)}; by the base it should be {list(expected)}"
            raise invalid(f"{path}: {module}: lora_{half} is {shapes}")
    return down, up


def _scale(fields: Fields, module: str, rank: int) -> float:
    """alpha / r, as given, or by `alpha_pattern` for modules whose path matches."""
    alpha = fields.number("lora_alpha", 8.0)
    if fields.has("alpha_pattern"):
        patterns = fields.table("alpha_pattern")
        matching: Iterable[str] = (key for key in patterns.values if re.match(rf"(.*\.)?({key})$", module))
        if key := next(iter(matching), None):
            alpha = patterns.number(key)
    return alpha / (rank**0.5 if fields.boolean("use_rslora", False) else rank)


def _fuse(parts: list[tuple[_Target, Tensor, Tensor]], device: torch.device, dtype: torch.dtype) -> LowRank:
    down = torch.cat([each for _, each, _ in parts])
    up = torch.zeros(parts[0][0].site_rows, down.shape[0])
    column = 0
    for target, _, block in parts:
        up[target.first_row : target.first_row + target.num_rows, column : column + block.shape[1]] = block
        column += block.shape[1]
    return LowRank(down.to(device, dtype), up.to(device, dtype))


def _fingerprint(directory: Path) -> str:
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        content = (directory / name).read_bytes()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
