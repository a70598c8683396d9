"""The engine: a model's folder in, generations out.

engine = PagedEngine.load(Path("model"), EngineOptions(memory_gb=8))
engine.start()
engine.submit(GenerateRequest("1", tuple(engine.tokenizer.encode("Once")), SamplingParams(max_tokens=20)), print)
engine.stop()

Its thread takes requests in, plans a step, launches it, and reads the previous one. On a GPU it runs one step ahead:
while the device computes step n + 1, the tokens of step n are read and sent. An end that is detected one step late (a
stop string) wastes one row. On a CPU there is nothing to overlap, and each step is read at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from engines.core.errors import unavailable
from engines.paged.admission import Admission
from engines.paged.base.options import DETERMINISTIC_CHUNK, EngineOptions
from engines.paged.base.types import FinishReason, GenerateRequest, Listener
from engines.paged.builder import Parts, Progress, assemble
from engines.paged.cache.block_pool import BlockPool
from engines.paged.cache.event_publisher import CacheEvents, EventPublisher
from engines.paged.device import DeviceThread
from engines.paged.generation.generation import Generation
from engines.paged.generation.prefill_pacing import Pacing
from engines.paged.generation.request_table import EngineStatistics, RequestTable
from engines.paged.kv_store.kv_transfer import BlockTransfer, KVTransfer
from engines.paged.runner.runner import Launched
from engines.paged.scheduling.scheduler import Scheduler
from gateway.protocol.kv_events import AllBlocksCleared

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 0.01
# How long a stopping engine waits for the store to take the last blocks.
_FLUSH_SECONDS = 3.0

_MEMORY_SIZES = ("budget_bytes", "weight_bytes", "cache_bytes", "workspace_bytes", "cache_tokens", "block_size")
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
        self._pacing = pacing = Pacing(PREFILL_STRETCH, LEAST_PREFILL_ROWS, options.max_batch_tokens)
        self._request_table = RequestTable(
            self._scheduler, pacing, parts.batches, self.statistics, options.check_logits
        )
        self._transfer = BlockTransfer()  # exchanges blocks with a store
        if parts.block_store is not None:
            self._transfer = KVTransfer(parts.block_store, self._scheduler, options, lambda: pacing.row_seconds)
        self._transfer.on_arrival = self._wake_for_blocks
        self._publisher: EventPublisher | None = None
        self._cache_events: CacheEvents | None = None
        if options.kv_events is not None:
            self._publish_events(options.kv_events, options.kv_events_replay)
        # Whether a step is launched before the previous one is read.
        self._runs_ahead = parts.device.type != "cpu" if options.run_ahead is None else options.run_ahead
        self._inbox: deque[Generation | str] = deque()  # requests, and the ids of those to cancel
        self._wake = threading.Condition()
        self._has_arrivals = False  # blocks from the store
        self._is_stopping = False
        self._has_ended = False
        self._stop_by = 0.0
        self._in_flight: Launched | None = None
        self._last_read = 0.0

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

    # Any thread

    def start(self) -> None:
        assert self._thread is not None, "it was stopped"
        self._thread.begin(self._run)

    def stop(self, grace_seconds: float = 0.0) -> None:
        """Accept no more requests. Active ones have `grace_seconds` to end, then they are cancelled. A listener may
        call this too; it does not wait then."""
        with self._wake:
            self._stop_by = time.monotonic() + grace_seconds
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.begin(self._end)
            self._thread.end()
            self._thread = None

    def submit(self, request: GenerateRequest, listener: Listener) -> None:
        """Generate: the listener is called on the engine's thread, until an output has `is_final`.

        Raises: EngineError where the request cannot be served: the field, and what is allowed.
        """
        if self._is_stopping:
            raise unavailable("the engine is being stopped")
        if len(self._request_table) + len(self._inbox) >= self.options.max_waiting + self.options.max_sequences:
            raise unavailable(f"{self.options.max_waiting} requests wait already (max_waiting): try again later")
        generation = self._admission.generation(request, listener)
        self._transfer.prefetch(generation.choices[0].sequence)
        if not self._put(generation):
            raise unavailable("the engine is being stopped")

    def cancel(self, request_id: str) -> None:
        """End a request, if it is active: its listener gets the end, and its blocks are free before the next step."""
        self._put(request_id)

    def _publish_events(self, address: str, replay_address: str | None) -> None:
        """Raises: EngineError where an address cannot be bound."""
        self._publisher = EventPublisher(address, replay_address)
        events = self._cache_events = CacheEvents(self.options.block_size, self._publisher.publish)
        self._scheduler.pool.on_evicted = events.evicted
        self._scheduler.block_manager.on_named = events.named
        self._publisher.publish([AllBlocksCleared()])  # subscribers of a predecessor forget its blocks

    def _put(self, item: Generation | str) -> bool:
        with self._wake:
            if self._has_ended:
                return False
            self._inbox.append(item)
            self._wake.notify()
            return True

    def _wake_for_blocks(self) -> None:
        """The store has sent blocks that the next step can load."""
        with self._wake:
            self._has_arrivals = True
            self._wake.notify()

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
            **self._transfer.stats(),
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
            "memory": {name: getattr(memory, name) for name in _MEMORY_SIZES},
            "memory_text": str(memory),
            "quantization": self._parts.loaded.quantization,
            "fingerprint": self._parts.loaded.fingerprint,
            "kv_store": None if self._parts.block_store is None else self._parts.block_store.about,
        }

    # The engine's thread

    def _run(self) -> None:
        """Serve until stopped."""
        while True:
            is_idle = not self._request_table and self._in_flight is None
            if is_idle:
                self._transfer.when_idle()
            with self._wake:
                while is_idle and not self._inbox and not self._is_stopping:
                    self._wake.wait()
            if self._is_stopping and ((is_idle and not self._inbox) or time.monotonic() >= self._stop_by):
                break
            self._take_in()
            self._request_table.end_expired()
            has_stepped = self._step()
            if self._cache_events is not None:
                self._cache_events.flush()
            if not has_stepped:
                with self._wake:  # a wait for the store must not become a busy loop
                    self._wake.wait_for(lambda: self._inbox or self._has_arrivals or self._is_stopping, _IDLE_SECONDS)

    def _end(self) -> None:
        """Cancel the remaining requests and accept no more, also where the loop has never run."""
        with self._wake:
            self._has_ended = True
        self._take_in()
        if self._in_flight is not None:
            self._parts.runner.drain()
            self._in_flight = None
        self._request_table.end_all(FinishReason.CANCELLED, "the engine is being stopped")
        self._transfer.close(_FLUSH_SECONDS)
        self._transfer.on_arrival = lambda: None  # no cycle keeps the memory of a stopped engine
        if self._publisher is not None:
            self._publisher.close()

    def _step(self) -> bool:
        """Launch a step if there is one to compute, and read a launched one; whether there was either."""
        if self._in_flight is None:
            self._last_read = time.perf_counter()
        self._has_arrivals = False
        transfer = self._transfer
        try:
            transfer.before_step()
            plan = self._scheduler.plan(self._pacing.prefill_rows())
            launched = self._parts.runner.launch(plan) if plan is not None else None
            has_launched = launched is not None
            transfer.after_launch()
            if self._runs_ahead:
                launched, self._in_flight = self._in_flight, launched
            results = self._parts.runner.collect(launched) if launched is not None else []
            transfer.after_read()
        except Exception as error:
            _log.exception("a step failed")
            self._parts.runner.drain()
            self._in_flight = None
            transfer.forget()
            # The failure's cause and the content of the cache are unknown.
            message = f"the engine failed: {type(error).__name__}: {error}"
            self._request_table.end_all(FinishReason.ERROR, message)
            self._scheduler.pool.forget()
            return True
        if launched is not None:
            now = time.perf_counter()
            seconds, self._last_read = now - self._last_read, now
            self._request_table.read(launched, results, seconds)
        return has_launched or launched is not None

    def _take_in(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, str):
                self._request_table.cancel(item)
            else:
                self._request_table.begin(item)
