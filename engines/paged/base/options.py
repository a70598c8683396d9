"""The engine's options: those of `pointsman llm`, and the parameters of a model's config.pbtxt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engines.core.errors import invalid

_METHODS = ("ngram", "draft")
# Deterministic prompts are computed in chunks of this size: their shapes depend on the prompt alone.
DETERMINISTIC_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Speculation:
    """How tokens are drafted. `method` is ngram or draft; a draft model is a folder with the same vocabulary."""

    method: str
    num_tokens: int = 4  # drafted per step; more than about 4 loses where drafts are poor
    draft: Path | None = None
    ngram_max: int = 4  # the longest suffix that is looked up
    ngram_min: int = 2


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """One engine. None: chosen from the machine and the model, and logged at the start."""

    device: str = "auto"  # auto (mps, then cuda, then cpu) | mps | cuda | cpu
    ops: str = "auto"  # auto (metal on mps, native on a cpu, else reference) | reference | native | metal
    dtype: str = "auto"  # auto (the folder's; float32 where a CPU has no fast 16 bit) | float32 | float16 | bfloat16
    memory_gb: float | None = None  # weights, cache and workspace; None: a share of the free memory
    num_blocks: int | None = None  # of the cache, at any memory_gb; None: what memory_gb leaves room for
    block_size: int = 16  # tokens per block; 16 shares prefixes finely and costs attention little
    max_sequences: int = 64  # running at a time
    max_batch_tokens: int = 512  # rows per step: bounds how long a prompt delays decoding
    max_context: int | None = None  # of prompt and answer; None: the model's, as far as the cache can hold one
    max_waiting: int = 1024  # requests; more are refused
    prefix_cache: bool = True
    deterministic: bool = False  # greedy text does not depend on other requests; costs throughput
    quantize: str | None = None  # int8 | int4, at load
    quantize_group: int = 64
    threads: int | None = None  # of a CPU; None: the cores that this process may use
    run_ahead: bool | None = None  # launch a step before the previous one is read; None: on a GPU
    speculation: Speculation | None = None
    adapters: Mapping[str, Path] = field(default_factory=dict)  # LoRA, by the name in requests
    check_logits: bool = True  # NaN in a row fails that request alone, instead of producing noise
    kv_store: str | None = None  # URL of a Redis that keeps blocks beyond this process and for other engines
    kv_ttl: float = 86_400.0  # seconds that a block is kept after its last use
    kv_codec: str = "raw"  # raw | int8: half the size of 16 bits, keys and values rounded
    kv_secret_file: Path | None = None  # seals blocks, by tenant
    kv_deadline: float = 1.0  # seconds that a request waits for stored blocks; longer where computing takes longer
    kv_fetch: str = "auto"  # auto (where reading is faster than computing, as measured) | always
    kv_events: str | None = None  # ZeroMQ address that events of the prefix cache are published at; None: nowhere
    kv_events_replay: str | None = None  # where subscribers ask for events that they missed


def check_options(options: EngineOptions) -> None:
    """Raises: EngineError that names the option, and what it has to be."""
    for name in ("block_size", "max_sequences", "max_batch_tokens", "max_waiting"):
        if (value := getattr(options, name)) < 1:
            raise invalid(f"{name}: it is {value}, and must be at least 1")
    for name in ("num_blocks", "max_context", "threads", "memory_gb"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise invalid(f"{name}: it is {value}, and must be above 0")
    if options.max_batch_tokens < options.max_sequences:
        raise invalid(
            f"max_batch_tokens: a step of {options.max_batch_tokens} rows has no place for each of max_sequences "
            f"{options.max_sequences}: raise it to {options.max_sequences} at least, or lower max_sequences"
        )
    if options.deterministic and DETERMINISTIC_CHUNK % options.block_size:
        raise invalid(
            f"block_size: deterministic prompts are held in pieces of {DETERMINISTIC_CHUNK} tokens, which are not "
            f"whole blocks of {options.block_size}: take 8, 16, 32 or 64"
        )
    if options.kv_store is not None and not options.prefix_cache:
        raise invalid("kv_store: blocks are found by the names that the prefix cache gives them: leave prefix_cache on")
    if options.kv_events is not None and not options.prefix_cache:
        raise invalid("kv_events: they are about the prefix cache: leave prefix_cache on")
    if options.kv_events_replay is not None and options.kv_events is None:
        raise invalid("kv_events_replay: events that are not published cannot be replayed: set kv_events")
    speculation = options.speculation
    if speculation is not None:
        if speculation.method not in _METHODS:
            raise invalid(f"speculation: '{speculation.method}' is none of {', '.join(_METHODS)}")
        if speculation.num_tokens < 1:
            raise invalid(f"speculation: {speculation.num_tokens} tokens are no guess; 1 is the least")
        if not 1 <= speculation.ngram_min <= speculation.ngram_max:
            raise invalid(
                f"speculation: runs of {speculation.ngram_min} to {speculation.ngram_max} tokens are none; "
                "1 <= ngram_min <= ngram_max"
            )
