"""The engine: a model's folder in, generations out.

engine = PagedEngine.load(Path("model"), EngineOptions(memory_gb=8))
engine.start()
engine.submit(GenerateRequest("1", tuple(engine.tokenizer.encode("Once")), SamplingParams(max_tokens=20)), print)
engine.stop()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.core.errors import unavailable
from engines.paged.admission import Admission
from engines.paged.base.options import DETERMINISTIC_CHUNK, EngineOptions
from engines.paged.base.types import FinishReason, GenerateRequest, Listener
from engines.paged.builder import Parts, Progress, assemble
from engines.paged.cache.block_pool import BlockPool
from engines.paged.device import DeviceThread
from engines.paged.generation.loop import EngineLoop
from engines.paged.generation.prefill_pacing import Pacing
from engines.paged.generation.request_table import EngineStatistics, RequestTable
from engines.paged.kv_store.kv_transfer import BlockTransfer, KVTransfer
from engines.paged.scheduling.scheduler import Scheduler

# Prompts at most double the time to any sequence's next token.
PREFILL_STRETCH = 2.0
LEAST_PREFILL_ROWS = 16


class PagedEngine:
    """Serves one model. `submit` and `cancel` may be called on any thread."""

    def __init__(self, parts: Parts, thread: DeviceThread) -> None:
        """See `load`. `thread` is the one that assembled the parts."""
        options = parts.options
        self.options = options
        self.config = parts.config
        self.tokenizer = parts.tokenizer
        self.default_params = parts.default_params
        self.max_context = parts.max_context
        self.memory = parts.memory
        self.statistics = EngineStatistics()
        self._parts = parts
        self._thread: DeviceThread | None = thread
        self._admission = Admission(parts)
        self._scheduler = Scheduler(
            BlockPool(parts.memory.num_blocks),
            block_size=options.block_size,
            max_sequences=options.max_sequences,
            max_batch_tokens=options.max_batch_tokens,
            prefix_cache=options.prefix_cache,
            chunk_tokens=DETERMINISTIC_CHUNK if options.deterministic else None,
        )
        pacing = Pacing(PREFILL_STRETCH, LEAST_PREFILL_ROWS, options.max_batch_tokens)
        request_table = RequestTable(
            self._scheduler,
            pacing,
            self.statistics,
            checks=options.check_logits,
            decode=parts.tokenizer.decode,
            on_release=lambda sequence: parts.batches.release(sequence.sampling),
        )
        transfer = BlockTransfer()
        if parts.block_store is not None:
            transfer = KVTransfer(
                parts.block_store,
                self._scheduler,
                deadline_seconds=options.kv_deadline,
                always=options.kv_fetch == "always",
                prefill_seconds=lambda: pacing.row_seconds,
            )
        is_gpu = parts.device.type != "cpu"
        ahead = is_gpu if options.run_ahead is None else options.run_ahead
        self._loop = EngineLoop(self._scheduler, parts.runner, pacing, request_table, transfer, ahead=ahead)
        self._is_stopped = False

    @classmethod
    def load(cls, directory: Path, options: EngineOptions, progress: Progress | None = None) -> PagedEngine:
        """An engine for a Hugging Face folder.

        Raises: EngineError that names the file, the field or the option, and what would do.
        """
        thread = DeviceThread("paged-engine")
        try:
            return cls(thread.begin(lambda: assemble(directory, options, progress)).result(), thread)
        except BaseException:
            thread.end()
            raise

    def start(self) -> None:
        assert self._thread is not None, "it was stopped"
        self._thread.begin(self._loop.run)

    def stop(self, grace_seconds: float = 0.0) -> None:
        """Accept no more requests. Active ones have `grace_seconds` to end, then they are cancelled. A listener may
        call this too; it does not wait then."""
        self._is_stopped = True
        self._loop.stop(grace_seconds)
        if self._thread is not None:
            self._thread.begin(self._loop.end)
            self._thread.end()
            self._thread = None

    def submit(self, request: GenerateRequest, listener: Listener) -> None:
        """Generate: the listener is called on the engine's thread, until an output has `is_final`.

        Raises: EngineError where the request cannot be served: the field, and what is allowed.
        """
        if self._is_stopped:
            raise unavailable("the engine is being stopped")
        if self._loop.num_requests >= self.options.max_waiting + self.options.max_sequences:
            raise unavailable(f"{self.options.max_waiting} requests wait already (max_waiting): try again later")
        generation = self._admission.generation(request, listener)
        self._loop.transfer.prefetch(generation.choices[0].sequence)
        if not self._loop.submit(generation):
            raise unavailable("the engine is being stopped")

    def cancel(self, request_id: str) -> None:
        """End a request: its listener gets the end, and its blocks are free before the next step."""
        self._loop.cancel(request_id)

    def stats(self) -> dict[str, float]:
        """Current gauges and counters."""
        scheduler, statistics = self._scheduler, self.statistics
        pool = scheduler.pool
        return {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": len(scheduler.waiting) + len(scheduler.fetching),
            "num_requests_fetching": len(scheduler.fetching),
            "kv_cache_usage": pool.num_used / pool.capacity,
            "kv_cache_blocks_used": pool.num_used,
            "kv_cache_blocks": pool.capacity,
            "prompt_tokens_total": scheduler.num_prompt_tokens,
            "prefill_tokens_total": scheduler.num_prompt_tokens - scheduler.num_cached_tokens,
            "prefix_cache_queries_total": scheduler.num_prompt_tokens,
            "prefix_cache_hits_total": scheduler.num_cached_tokens,
            "generation_tokens_total": statistics.num_output_tokens,
            "num_preemptions_total": scheduler.num_preemptions,
            "requests_total": statistics.num_requests,
            "requests_finished_total": statistics.num_ended[FinishReason.STOP],
            "requests_failed_total": statistics.num_ended[FinishReason.ERROR],
            "requests_cancelled_total": statistics.num_ended[FinishReason.CANCELLED],
            "requests_expired_total": statistics.num_ended[FinishReason.DEADLINE],
            "spec_decode_num_draft_tokens_total": statistics.num_guessed,
            "spec_decode_num_accepted_tokens_total": statistics.num_right,
            "steps_total": statistics.num_steps,
            "rows_total": statistics.num_rows,
            **self._loop.transfer.stats(),
        }

    def describe(self) -> dict[str, Any]:
        """Device, dtype and memory of this engine, for the log and the model's configuration."""
        memory = self.memory
        return {
            "device": str(self._parts.device),
            "ops": self._parts.ops.name,
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
            "quantization": self._parts.loaded.report.quantization,
            "fingerprint": self._parts.loaded.fingerprint,
            "kv_store": None if self._parts.block_store is None else self._parts.block_store.about,
        }
