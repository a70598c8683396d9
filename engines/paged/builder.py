"""Builds an engine's parts from a model's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engines.core.errors import EngineError, invalid
from engines.paged.base.options import EngineOptions, Speculation, check_options
from engines.paged.base.types import SamplingParams
from engines.paged.cache.claims import MemoryClaim, MemoryClaims
from engines.paged.cache.memory import KVCache, MemoryPlan, available_memory, plan_memory
from engines.paged.device import choose_device, choose_dtype, choose_ops, use_threads
from engines.paged.kv_store.block_store import BlockMemory, BlockStore
from engines.paged.model.config import DecoderConfig
from engines.paged.model.config_reader import read_config
from engines.paged.ops.reference import Ops
from engines.paged.runner.draft_model import DraftModel
from engines.paged.runner.runner import Runner
from engines.paged.sampling.batch import SamplingBatches
from engines.paged.sampling.grammar import GrammarCompiler
from engines.paged.sampling.params_parser import read_default_params
from engines.paged.text.tokenizer import Tokenizer
from engines.paged.weights.loader import LoadedModel, load_model
from engines.paged.weights.lora import load_adapter

Progress = Callable[[str, int, int], None]  # stage, done, total

# A context is halved until it fits into memory, down to this many blocks.
_LEAST_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine's parts. `max_context` is in tokens, prompt and answer; `default_params` are the folder's, for fields
    that a request leaves out."""

    options: EngineOptions
    device: torch.device
    ops: Ops
    loaded: LoadedModel
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    default_params: SamplingParams
    grammars: GrammarCompiler
    memory: MemoryPlan
    max_context: int
    batches: SamplingBatches
    runner: Runner
    block_store: BlockStore | None  # blocks stored beyond the engine
    claim: MemoryClaim  # counted by other engines of this machine while this one lives

    @property
    def config(self) -> DecoderConfig:
        return self.loaded.config


def assemble(directory: Path, options: EngineOptions, progress: Progress | None) -> Parts:
    """Read and prepare everything, on the engine's thread.

    Raises: EngineError that names the file, the field or the option, and what is allowed.
    """
    check_options(options)
    device = choose_device(options.device)
    use_threads(options.threads)  # torch has this setting per thread
    dtype = choose_dtype(options.dtype, read_config(directory).dtype, device)
    ops = choose_ops(options.ops, device, getattr(torch, dtype), deterministic=options.deterministic)
    tokenizer = Tokenizer.load(directory)
    loaded = load_model(
        directory,
        ops,
        dtype=dtype,
        quantize=options.quantize,
        quantize_group=options.quantize_group,
        num_positions=options.max_context,
        progress=_stage(progress, "weights"),
    )
    config = loaded.config
    adapters = {name: load_adapter(name, path, config, device) for name, path in options.adapters.items()}
    # Beyond the context that a draft model was trained on, its drafts are worse and become fewer.
    num_positions = options.max_context or config.max_positions
    draft = _load_draft(options.speculation, ops, dtype, config, num_positions, progress)
    models = [each for each in (loaded, draft) if each is not None]
    for shape in (each.config for each in models):
        ops.prepare_attention(shape.num_heads, shape.num_kv_heads, shape.head_size, getattr(torch, dtype))
    weight_bytes = sum(each.weight_bytes for each in models) + sum(each.num_bytes for each in adapters.values())
    claims = MemoryClaims()
    with claims.planning() as claimed_bytes:
        available = available_memory(device, weight_bytes, claimed_bytes)
        memory, max_context = _plan(config, draft, options, weight_bytes, available, device.type)
        claim = claims.claim(memory.total_bytes if device.type != "cuda" else 0)
    eos_ids = tokenizer.eos_ids | frozenset(config.eos_token_ids)
    grammars = GrammarCompiler(tokenizer, eos_ids)
    grammars.prepare()
    batches = SamplingBatches(config.vocab_size, ops.staging, eos_ids, lambda text: tokenizer.encode(text, False))
    caches = [KVCache(each.config, memory.num_blocks, options.block_size, device) for each in models]
    runner = Runner(
        ops,
        loaded.decoder,
        caches[0],
        batches,
        adapters,
        options,
        None if draft is None else DraftModel(ops, draft.decoder, caches[1]),
    )
    block_store = None
    if options.kv_store is not None:
        draft_print = None if draft is None else draft.fingerprint
        adapter_prints = {name: adapter.fingerprint for name, adapter in adapters.items()}
        block_store = BlockStore(options, BlockMemory(caches, ops), loaded.fingerprint, draft_print, adapter_prints)
    return Parts(
        options=options,
        device=device,
        ops=ops,
        loaded=loaded,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        default_params=read_default_params(directory),
        grammars=grammars,
        memory=memory,
        max_context=max_context,
        batches=batches,
        runner=runner,
        block_store=block_store,
        claim=claim,
    )


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)


def _load_draft(
    speculation: Speculation | None,
    ops: Any,
    dtype: str,
    config: DecoderConfig,
    num_positions: int,
    progress: Progress | None,
) -> LoadedModel | None:
    if speculation is None or speculation.method != "draft":
        return None
    if speculation.draft is None:
        raise invalid("speculation: method 'draft' needs the folder of a draft model")
    draft = load_model(
        speculation.draft,
        ops,
        dtype=dtype,
        num_positions=num_positions,
        progress=_stage(progress, "draft model's weights"),
    )
    if draft.config.vocab_size > config.vocab_size:
        raise invalid(
            f"speculation: the draft model '{speculation.draft}' has {draft.config.vocab_size} tokens, the model "
            f"{config.vocab_size}: they must share a tokenizer"
        )
    return draft


def _plan(
    config: DecoderConfig,
    draft: LoadedModel | None,
    options: EngineOptions,
    weight_bytes: int,
    available: int,
    device_type: str,
) -> tuple[MemoryPlan, int]:
    """The memory plan and the context length: without the option, the longest that fits."""
    more = draft.config.kv_bytes_per_token if draft is not None else 0
    max_context = options.max_context or config.max_positions
    while True:
        try:
            memory = plan_memory(config, options, weight_bytes, available, max_context, more, device_type)
            return memory, max_context
        except EngineError:
            if options.max_context is not None or max_context <= _LEAST_BLOCKS * options.block_size:
                raise
            max_context //= 2
