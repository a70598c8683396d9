"""From a folder to a decoder that computes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from engines.core.errors import invalid
from engines.paged.model.config import DecoderConfig
from engines.paged.model.config_reader import read_config
from engines.paged.model.decoder import Decoder
from engines.paged.ops.interface import Ops
from engines.paged.weights.builder import build
from engines.paged.weights.files import TensorFiles
from engines.paged.weights.fingerprint import FilesDigest, model_fingerprint
from engines.paged.weights.load_report import KindLoss, held_bytes, losses_by_kind, unread
from engines.paged.weights.quantization import GROUP_SIZES, SCHEMES
from engines.paged.weights.weight_reader import Progress, Scheme, WeightReader

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What loading did. `losses` says what quantizing cost, by kind of module (self_attn.q_proj); `left_dense` are
    those whose rows no group divides; `unused` tensors of the files belong to nothing that this decoder has."""

    seconds: float
    file_bytes: int
    num_tensors: int
    losses: Mapping[str, KindLoss] = field(default_factory=dict)
    left_dense: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def quantization(self) -> str | None:
        """What quantizing cost, in words; None where nothing was quantized at load."""
        if not self.losses:
            return None
        kind, worst = max(self.losses.items(), key=lambda each: each[1].worst_relative)
        num_modules = sum(each.num_modules for each in self.losses.values())
        told = f"{num_modules} modules, off by at most {worst.worst_relative:.2%} ({worst.worst}, of {kind})"
        return told + (f"; {len(self.left_dense)} left as they are" if self.left_dense else "")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`config.dtype` is the one computed in; `weight_bytes` is what the weights take where they are computed with."""

    config: DecoderConfig
    decoder: Decoder
    fingerprint: str
    weight_bytes: int
    report: LoadReport


def load_model(
    directory: Path,
    ops: Ops,
    *,
    dtype: str | torch.dtype | None = None,
    quantize: str | None = None,
    quantize_group: int = 64,
    num_positions: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Read config and weights, quantize them where asked (int8 or int4, in groups of 32, 64 or 128), and prepare them.

    `dtype`: float32, float16 or bfloat16; None: the folder's. `num_positions`: how long a sequence may become, where
    that is less than the config says. `progress` is called with bytes read and all there are.

    Raises: EngineError that names what is wrong, and in which file.
    """
    started = time.perf_counter()
    config = read_config(directory)
    scheme = _scheme(config, directory, quantize, quantize_group)
    torch_dtype = _dtype(config.dtype if dtype is None else dtype)
    files = TensorFiles(directory)
    digest = FilesDigest(files.paths, num_threads=min(4, os.cpu_count() or 1))
    try:
        tensors = WeightReader(files, torch_dtype, config.quantization, scheme, progress)
        weights = build(config, tensors, ops)
        unused = unread(config, tensors)
        files_digest = digest.result()
    finally:
        digest.close()
    computed = replace(config, dtype=str(torch_dtype).removeprefix("torch."))
    decoder = Decoder(computed, ops, weights, num_positions)
    scheme_text = f"{quantize}/{quantize_group}" if scheme else str(config.quantization)
    return LoadedModel(
        config=computed,
        decoder=decoder,
        fingerprint=model_fingerprint(files_digest, config, computed.dtype, scheme_text),
        weight_bytes=held_bytes(weights),
        report=LoadReport(
            seconds=time.perf_counter() - started,
            file_bytes=files.num_bytes,
            num_tensors=len(list(files)),
            losses=losses_by_kind(tensors.losses),
            left_dense=tuple(tensors.left_dense),
            unused=unused,
        ),
    )


def _scheme(config: DecoderConfig, directory: Path, quantize: str | None, group_size: int) -> Scheme | None:
    if quantize is None:
        return None
    if quantize not in SCHEMES:
        raise invalid(f"quantize: '{quantize}' is not supported; {', '.join(SCHEMES)} are")
    if group_size not in GROUP_SIZES:
        raise invalid(f"quantize_group: {group_size} is not supported; {', '.join(map(str, GROUP_SIZES))} are")
    if config.quantization is not None:
        bits = config.quantization.bits
        raise invalid(f"quantize: {directory} is quantized already, to {bits} bits; leave '{quantize}' out")
    return Scheme(SCHEMES[quantize], group_size)


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise invalid(f"dtype: '{dtype}' is not supported; {', '.join(DTYPES)} are")
    return DTYPES[dtype]
