"""What loading tells of itself: what quantizing cost, what the weights take, what of the files was not read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from engines.paged.model.config import DecoderConfig
from engines.paged.weights.quantization import Loss
from engines.paged.weights.weight_reader import WeightReader

_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+)")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
# Tables that old folders carry along: they follow from the config.
_DERIVED = re.compile(r".*\.(rotary_emb\.inv_freq|self_attn\.bias|self_attn\.masked_bias)$")


@dataclass(frozen=True, slots=True)
class KindLoss:
    """The error of quantizing all modules of a kind, relative to them (roots of mean squares), and of the worst one."""

    relative: float
    worst: str
    worst_relative: float
    num_modules: int


def losses_by_kind(losses: Mapping[str, Loss]) -> dict[str, KindLoss]:
    """By module: `model.layers.3.mlp.experts.7.up_proj` is of the kind mlp.experts.up_proj."""
    kinds: dict[str, dict[str, Loss]] = defaultdict(dict)
    for module, loss in losses.items():
        match = _LAYER.match(module)
        kinds[_NUMBER.sub("", match[2] if match else module.removeprefix("model."))][module] = loss
    return {kind: _kind_loss(modules) for kind, modules in sorted(kinds.items())}


def _kind_loss(modules: Mapping[str, Loss]) -> KindLoss:
    worst = max(modules, key=lambda module: modules[module].relative)
    error, total = (sum(getattr(loss, part) for loss in modules.values()) for part in ("error", "total"))
    return KindLoss(Loss(error, total).relative, worst, modules[worst].relative, len(modules))


def unread(config: DecoderConfig, tensors: WeightReader) -> tuple[str, ...]:
    """What the files have and the decoder has no use for: layers after the last (for guessing ahead), a head beside
    tied embeddings, other towers.

    Raises: EngineError where it is within a layer: the model is then another than config.json says.
    """
    unused = [name for name in tensors.unused if not _DERIVED.match(name)]
    for name in unused:
        layer = _LAYER.match(name)
        if layer and int(layer[1]) < config.num_layers:
            raise tensors.files.wrong(name, f"by config.json a {config.architecture} has no such tensor")
    return tuple(unused)


def held_bytes(held: Any) -> int:
    """What tensors take, wherever in dataclasses, objects, lists and tables they are; shared memory counts once."""
    storages: dict[tuple[str, int], int] = {}
    for tensor in _tensors(held):
        if tensor.is_mkldnn:  # its memory cannot be asked for
            storages["blocked", id(tensor)] = tensor.numel() * tensor.element_size()
        else:
            storages["plain", tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def _tensors(held: Any) -> Iterator[Tensor]:
    if isinstance(held, Tensor):
        yield held
        return
    parts: Iterable[Any] = ()
    if isinstance(held, Mapping):
        parts = held.values()
    elif isinstance(held, list | tuple):
        parts = held
    elif is_dataclass(held) and not isinstance(held, type):
        parts = (getattr(held, each.name) for each in fields(held))
    elif hasattr(held, "__dict__") and type(held).__module__.startswith("engines."):
        parts = vars(held).values()
    for part in parts:
        yield from _tensors(part)
