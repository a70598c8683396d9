"""The engine: a model's folder in, generations out.

engine = PagedEngine.load(Path("model"), EngineOptions(memory_gb=8))
engine.start()
engine.submit(GenerateRequest("1", tuple(engine.tokenizer.encode("Once")), SamplingParams(max_tokens=20)), print)
engine.stop()
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engines.errors import invalid, unavailable
from engines.paged.cache.block_pool import BlockPool
from engines.paged.cache.kv_cache import KVCache
from engines.paged.cache.memory import MemoryPlan, available_memory, plan_memory
from engines.paged.device import choose_device, choose_dtype, use_threads
from engines.paged.generating.beams import BeamSearch
from engines.paged.generating.choice import Choice
from engines.paged.generating.generation import Generation
from engines.paged.generating.loop import EngineLoop
from engines.paged.generating.pacing import Pacing
from engines.paged.generating.statistics import Statistics
from engines.paged.model.config import ModelConfig
from engines.paged.model.reading import read_config
from engines.paged.ops.choosing import choose_ops
from engines.paged.options import EngineOptions, Speculation
from engines.paged.own_thread import OwnThread
from engines.paged.runner.drafting import DraftModel
from engines.paged.runner.runner import Runner
from engines.paged.runner.sampler import Sampler
from engines.paged.sampling.batch import SamplingBatches
from engines.paged.sampling.grammar import GrammarCompiler
from engines.paged.sampling.params import SamplingParams
from engines.paged.sampling.reading import read_default_params
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import Sequence
from engines.paged.speculation.judge import Judge
from engines.paged.speculation.ngram import NgramIndex
from engines.paged.text.stream import TextStream
from engines.paged.text.tokenizer import Tokenizer
from engines.paged.values import GenerateRequest, Listener
from engines.paged.weights.loading import LoadedModel, load_model
from engines.paged.weights.lora import load_adapter

Progress = Callable[[str, int, int], None]  # what is being done, done so far, in all

# Deterministic steps hold prompts in pieces of this: shapes that depend on the prompt alone.
DETERMINISTIC_CHUNK = 64
# Nobody's next token comes later than twice what it would, for others' prompts.
PREFILL_STRETCH = 2.0
LEAST_PREFILL_ROWS = 16
_SEED_BYTES = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class PagedEngine:
    """One model, served. `submit` and `cancel` may be called on any thread."""

    def __init__(
        self,
        options: EngineOptions,
        loaded: LoadedModel,
        tokenizer: Tokenizer,
        runner: Runner,
        sampler: Sampler,
        memory: MemoryPlan,
        device: torch.device,
        max_context: int,
        ops_name: str,
        default_params: SamplingParams,
    ) -> None:
        """See `load`."""
        self.options = options
        self.config: ModelConfig = loaded.config
        self.tokenizer = tokenizer
        self.memory = memory
        self.max_context = max_context
        self.statistics = Statistics()
        self._loaded = loaded
        self._device = device
        self._ops_name = ops_name
        self._eos_ids = tokenizer.eos_ids | frozenset(loaded.config.eos_token_ids)
        self._grammars = GrammarCompiler(tokenizer, self._eos_ids)
        self._grammars.prepare()
        self.default_params = default_params  # where a request is silent, as the folder has it
        self._sampler = sampler
        self._scheduler = Scheduler(
            BlockPool(memory.num_blocks),
            block_size=options.block_size,
            max_sequences=options.max_sequences,
            max_batch_tokens=options.max_batch_tokens,
            prefix_cache=options.prefix_cache,
            chunk=DETERMINISTIC_CHUNK if options.deterministic else None,
        )
        speculation = options.speculation
        pacing = Pacing(PREFILL_STRETCH, LEAST_PREFILL_ROWS, options.max_batch_tokens)
        self._loop = EngineLoop(
            self._scheduler,
            runner,
            pacing,
            self.statistics,
            ahead=options.run_ahead if options.run_ahead is not None else device.type != "cpu",
            drafts=speculation is not None and speculation.method == "draft",
            decode=lambda tokens: tokenizer.decode(tokens),
            on_release=sampler.release,
        )
        self._arrivals = 0
        self._lock = threading.Lock()
        self._thread: OwnThread | None = None
        self._is_stopped = False

    @classmethod
    def load(cls, directory: Path, options: EngineOptions, progress: Progress | None = None) -> PagedEngine:
        """An engine for a Hugging Face folder.

        Raises: EngineError that names the file, the field or the option, and what would do.
        """
        thread = OwnThread("paged-engine")
        try:
            engine = thread.begin(lambda: cls._load(directory, options, progress)).result()
        except BaseException:
            thread.end()
            raise
        engine._thread = thread
        return engine

    @classmethod
    def _load(cls, directory: Path, options: EngineOptions, progress: Progress | None) -> PagedEngine:
        device = choose_device(options.device)
        use_threads(options.threads)  # torch keeps that by thread
        ops = choose_ops(options.ops, device, deterministic=options.deterministic)
        dtype = choose_dtype(options.dtype, read_config(directory).dtype, device)
        tokenizer = Tokenizer.load(directory)
        loaded = load_model(
            directory,
            ops,
            dtype=dtype,
            quantize=options.quantize,
            quantize_group=options.quantize_group,
            progress=_stage(progress, "weights"),
        )
        config = loaded.config
        adapters = {name: load_adapter(name, path, config, device) for name, path in options.adapters.items()}
        draft, weight_bytes = None, loaded.weight_bytes + sum(each.num_bytes for each in adapters.values())
        if options.speculation is not None and options.speculation.method == "draft":
            draft = _load_draft(options.speculation, ops, dtype, config, progress)
            weight_bytes += draft.weight_bytes
        wanted = options.max_context or config.max_positions
        available = available_memory(device, weight_bytes)
        memory, max_context = _plan(config, draft, options, weight_bytes, available, wanted)
        cache = KVCache(config, memory.num_blocks, options.block_size, device)
        eos_ids = tokenizer.eos_ids | frozenset(config.eos_token_ids)
        batches = SamplingBatches(config.vocab_size, device, eos_ids, lambda text: tokenizer.encode(text, False))
        sampler = Sampler(batches, adapters, device)
        drafting = None
        if draft is not None:
            draft_cache = KVCache(draft.config, memory.num_blocks, options.block_size, device)
            drafting = DraftModel(ops, draft.decoder, draft_cache, options.block_size)
        runner = Runner(
            ops,
            loaded.decoder,
            cache,
            sampler,
            block_size=options.block_size,
            max_sequences=options.max_sequences,
            deterministic=options.deterministic,
            draft=drafting,
        )
        defaults = read_default_params(directory)
        return cls(options, loaded, tokenizer, runner, sampler, memory, device, max_context, ops.name, defaults)

    def __repr__(self) -> str:
        return f"<PagedEngine {self.config.architecture} on {self._device}: {self._scheduler!r}>"

    def start(self) -> None:
        """Begin to serve."""
        assert self._thread is not None, "an engine is made by load"
        self._thread.begin(self._loop.run)

    def stop(self, grace_seconds: float = 0.0) -> None:
        """Take no more requests; those under way have so long to end, and are cancelled then."""
        self._is_stopped = True
        self._loop.stop(grace_seconds)
        if self._thread is not None:
            self._thread.end()
            self._thread = None

    def submit(self, request: GenerateRequest, listener: Listener) -> None:
        """Have a request answered: the listener is called on the engine's thread, until an output says `is_final`.

        Raises: EngineError where it cannot be answered: the field, and what would do.
        """
        if self._is_stopped:
            raise unavailable("the engine is being stopped")
        if self._loop.num_requests >= self.options.max_waiting + self.options.max_sequences:
            raise unavailable(f"{self.options.max_waiting} requests wait already (max_waiting): try again later")
        request = self._checked(request)
        params = request.params
        matcher = self._grammars.compile(params.grammar) if params.grammar is not None else None
        with self._lock:
            self._arrivals += 1
            arrival = self._arrivals
        beams = self._beams(params)
        choices = []
        for index in range(beams.width if beams is not None else max(params.n, params.best_of or 0)):
            sequence = Sequence(request, index, arrival, self.options.block_size)
            own = matcher if matcher is None or not index else matcher.fork()
            choice = Choice(sequence, TextStream(self.tokenizer, params), self._eos_ids, own)
            needs_host = self._sampler.admit(sequence, _seed_of(params.seed, index), own)
            self._let_guess(choice)
            sequence.needs_host = needs_host or choice.judge is not None or beams is not None
            choices.append(choice)
        self._loop.submit(Generation(request, choices, listener, time.monotonic(), beams))

    def cancel(self, request_id: str) -> None:
        """End a request; its listener is told, and its blocks are free before the next step."""
        self._loop.cancel(request_id)

    def stats(self) -> dict[str, float]:
        """Gauges and counters of this moment."""
        scheduler, numbers = self._scheduler, self.statistics
        pool = scheduler.pool
        return {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": len(scheduler.waiting),
            "kv_cache_usage": pool.num_used / pool.capacity,
            "kv_cache_blocks_used": pool.num_used,
            "kv_cache_blocks": pool.capacity,
            "prompt_tokens_total": scheduler.num_prompt_tokens,
            "prefix_cache_queries_total": scheduler.num_prompt_tokens,
            "prefix_cache_hits_total": scheduler.num_cached_tokens,
            "generation_tokens_total": numbers.num_output_tokens,
            "num_preemptions_total": scheduler.num_preemptions,
            "requests_total": numbers.num_requests,
            "requests_finished_total": numbers.num_finished,
            "requests_failed_total": numbers.num_failed,
            "requests_cancelled_total": numbers.num_cancelled,
            "spec_decode_num_draft_tokens_total": numbers.num_guessed,
            "spec_decode_num_accepted_tokens_total": numbers.num_right,
            "steps_total": numbers.num_steps,
            "rows_total": numbers.num_rows,
        }

    def describe(self) -> dict[str, Any]:
        """What runs where, for the log and for the model's configuration."""
        memory = self.memory
        return {
            "device": str(self._device),
            "ops": self._ops_name,
            "dtype": self.config.dtype,
            "architecture": self.config.architecture,
            "max_context": self.max_context,
            "memory": {
                "budget_bytes": memory.budget_bytes,
                "weight_bytes": memory.weight_bytes,
                "cache_bytes": memory.cache_bytes,
                "workspace_bytes": memory.workspace_bytes,
                "cache_tokens": memory.cache_tokens,
                "block_size": memory.block_size,
            },
            "memory_text": str(memory),
            "quantization": self._loaded.report.quantization,
            "fingerprint": self._loaded.fingerprint,
        }

    def _checked(self, request: GenerateRequest) -> GenerateRequest:
        """The request, its answer bounded by the context."""
        prompt, params = request.prompt, request.params
        if not prompt:
            raise invalid("the prompt is empty: it must have at least one token")
        vocabulary = self.config.vocab_size
        for where, ids in (
            ("prompt", prompt),
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
        ):
            wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
            if wrong is not None:
                raise invalid(f"{where}: {wrong} is no token of this model, whose ids are 0 .. {vocabulary - 1}")
        if len(prompt) >= self.max_context:
            raise invalid(
                f"the prompt has {len(prompt)} tokens, and the context holds {self.max_context}, the answer included: "
                "shorten the prompt, or serve with a larger max_context"
            )
        if request.adapter is not None and request.adapter not in self.options.adapters:
            known = ", ".join(sorted(self.options.adapters)) or "none"
            raise invalid(f"adapter '{request.adapter}' is not loaded; loaded are: {known}")
        room = self.max_context - len(prompt)
        return replace(request, params=replace(params, max_tokens=min(params.max_tokens, room)))

    def _beams(self, params: SamplingParams) -> BeamSearch | None:
        if params.beam_width < 2:
            return None
        for field in ("stop", "grammar", "min_tokens", "logit_bias", "bad_words"):
            if getattr(params, field):
                raise invalid(f"{field}: beam search has no place for it; sample instead (beam_width 0)")
        if params.n > params.beam_width:
            raise invalid(f"n: {params.n} answers are more than {params.beam_width} beams (beam_width) can give")
        if params.beam_width > self.options.max_sequences:
            raise invalid(
                f"beam_width: {params.beam_width} is more than the engine's {self.options.max_sequences} seats"
            )
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_ids)
        return BeamSearch(
            params.beam_width,
            params.max_tokens,
            stop_ids,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
        )

    def _let_guess(self, choice: Choice) -> None:
        speculation = self.options.speculation
        is_beam = choice.sequence.request.params.beam_width > 1
        if speculation is None or self.options.deterministic or is_beam:
            return
        choice.judge = Judge(speculation.num_tokens)
        if speculation.method == "ngram":
            choice.ngrams = NgramIndex(speculation.ngram_min, speculation.ngram_max)


def _seed_of(seed: int | None, choice: int) -> int:
    """Of one choice: the first has the request's own."""
    if seed is None:
        return int.from_bytes(os.urandom(_SEED_BYTES), "little")
    return (seed + choice * _GOLDEN) & _MASK


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)


def _load_draft(
    speculation: Speculation, ops: Any, dtype: str, config: ModelConfig, progress: Progress | None
) -> LoadedModel:
    if speculation.draft is None:
        raise invalid("speculation: method 'draft' needs the folder of a draft model")
    draft = load_model(speculation.draft, ops, dtype=dtype, progress=_stage(progress, "draft model's weights"))
    if draft.config.vocab_size > config.vocab_size:
        raise invalid(
            f"speculation: the draft model '{speculation.draft}' has {draft.config.vocab_size} tokens, the model "
            f"{config.vocab_size}: they must share a tokenizer"
        )
    return draft


def _plan(
    config: ModelConfig,
    draft: LoadedModel | None,
    options: EngineOptions,
    weight_bytes: int,
    available: int,
    max_context: int,
) -> tuple[MemoryPlan, int]:
    """The memory, and how long a context it holds: where nobody asked for a length, as long as fits."""
    more = draft.config.kv_bytes_per_token if draft is not None else 0
    while True:
        try:
            return plan_memory(config, options, weight_bytes, available, max_context, more), max_context
        except Exception:
            if options.max_context is not None or max_context <= 4 * options.block_size:
                raise
            max_context //= 2
