"""Loads a decoder from a folder; reports quantization losses, the size of the weights, and unread tensors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.model.config import DecoderConfig, QuantizationSpec
from engines.paged.model.config_reader import DTYPES, read_config
from engines.paged.model.decoder import Decoder
from engines.paged.ops.reference import Ops
from engines.paged.weights.builder import WeightsBuilder
from engines.paged.weights.files import FilesDigest, TensorFiles, model_fingerprint
from engines.paged.weights.quantization import GROUP_SIZES, SCHEMES, Loss
from engines.paged.weights.weight_reader import Progress, WeightReader

_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+)")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
# Tables in old folders that follow from the config.
_DERIVED = re.compile(r".*\.(rotary_emb\.inv_freq|self_attn\.bias|self_attn\.masked_bias)$")


def unread(config: DecoderConfig, tensors: WeightReader) -> tuple[str, ...]:
    """Tensors of the files that the decoder does not use: layers after the last (for speculation), a head beside tied
    embeddings, other towers.

    Raises: EngineError for one within a layer: the model is not what config.json describes.
    """
    unused = [name for name in tensors.unused if not _DERIVED.match(name)]
    for name in unused:
        layer = _LAYER.match(name)
        if layer and int(layer[1]) < config.num_layers:
            raise tensors.files.wrong(name, f"by config.json a {config.architecture} has no such tensor")
    return tuple(unused)


def held_bytes(held: Any) -> int:
    """Bytes of all tensors in dataclasses, objects, lists and tables; shared memory counts once."""
    storages: dict[tuple[str, int], int] = {}
    for tensor in _tensors(held):
        if tensor.is_mkldnn:  # its memory size cannot be queried
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


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`config.dtype` is the one computed in; `weight_bytes` is the size of the prepared weights. `losses` of
    quantization by module; `left_dense`: modules whose rows no group divides; `unused`: tensors that the decoder does
    not read."""

    config: DecoderConfig
    decoder: Decoder
    fingerprint: str
    weight_bytes: int
    losses: Mapping[str, Loss]
    left_dense: Sequence[str]
    unused: tuple[str, ...]

    @property
    def quantization(self) -> str | None:
        """The losses of quantization as a text; None where nothing was quantized at load."""
        if not self.losses:
            return None
        worst, loss = max(self.losses.items(), key=lambda each: each[1].relative)
        # `model.layers.3.mlp.experts.7.up_proj` is of the kind mlp.experts.up_proj.
        match = _LAYER.match(worst)
        kind = _NUMBER.sub("", match[2] if match else worst.removeprefix("model."))
        summary = f"{len(self.losses)} modules, off by at most {loss.relative:.2%} ({worst}, of {kind})"
        return summary + (f"; {len(self.left_dense)} left as they are" if self.left_dense else "")


def load_model(
    directory: Path,
    ops: Ops,
    *,
    dtype: str | None = None,
    quantize: str | None = None,
    quantize_group: int = 64,
    num_positions: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Read config and weights, quantize them where requested (int8 or int4, in groups of 32, 64 or 128), and prepare
    them.

    `dtype`: float32, float16 or bfloat16; None: the folder's. `num_positions`: the longest sequence, where that is less
    than the config's. `progress` is called with bytes read and total.

    Raises: EngineError that names the problem and the file.
    """
    config = read_config(directory)
    scheme = _scheme(config, directory, quantize, quantize_group)
    computed = replace(config, dtype=dtype or config.dtype)
    if computed.dtype not in DTYPES:
        raise invalid(f"dtype: '{dtype}' is not supported; {', '.join(DTYPES)} are")
    files = TensorFiles(directory)
    digest = FilesDigest(files.paths, num_threads=min(4, os.cpu_count() or 1))
    try:
        tensors = WeightReader(files, getattr(torch, computed.dtype), config.quantization, scheme, progress)
        weights = WeightsBuilder(config, tensors, ops).build()
        unused = unread(config, tensors)
        files_digest = digest.result()
    finally:
        digest.close()
    decoder = Decoder(computed, ops, weights, num_positions)
    scheme_text = f"{quantize}/{quantize_group}" if scheme else str(config.quantization)
    return LoadedModel(
        config=computed,
        decoder=decoder,
        fingerprint=model_fingerprint(files_digest, config, computed.dtype, scheme_text),
        weight_bytes=held_bytes(weights),
        losses=tensors.losses,
        left_dense=tensors.left_dense,
        unused=unused,
    )


def _scheme(config: DecoderConfig, directory: Path, quantize: str | None, group_size: int) -> QuantizationSpec | None:
    if quantize is None:
        return None
    if quantize not in SCHEMES:
        raise invalid(f"quantize: '{quantize}' is not supported; {', '.join(SCHEMES)} are")
    if group_size not in GROUP_SIZES:
        raise invalid(f"quantize_group: {group_size} is not supported; {', '.join(map(str, GROUP_SIZES))} are")
    if config.quantization is not None:
        bits = config.quantization.bits
        raise invalid(f"quantize: {directory} is quantized already, to {bits} bits; leave '{quantize}' out")
    return QuantizationSpec(SCHEMES[quantize], group_size)
