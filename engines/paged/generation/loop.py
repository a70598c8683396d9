"""The engine's thread: it takes requests in, plans a step, launches it, and reads the previous one.

On a GPU the loop runs one step ahead: while the device computes step n + 1, the tokens of step n are read and sent. An
end that is detected one step late (a stop string) wastes one row. On a CPU there is nothing to overlap, and each step
is read at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from engines.paged.generation.generation import Generation
from engines.paged.generation.prefill_pacing import Pacing
from engines.paged.generation.request_table import RequestTable
from engines.paged.kv_store.kv_transfer import BlockTransfer
from engines.paged.runner.runner import Launched, Runner
from engines.paged.scheduling.scheduler import Scheduler

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 0.01
# How long a stopping engine waits for the store to take the last blocks.
_FLUSH_SECONDS = 3.0


class EngineLoop:
    """`submit`, `cancel`, `wake` and `stop` may be called on any thread; `run` and `end` on the engine's."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        pacing: Pacing,
        request_table: RequestTable,
        transfer: BlockTransfer,
        *,
        ahead: bool,
    ) -> None:
        """`ahead`: a step is launched before the previous one is read. `transfer` exchanges blocks with a store."""
        self.transfer = transfer
        transfer.on_arrival = self.wake
        self._scheduler = scheduler
        self._runner = runner
        self._pacing = pacing
        self._request_table = request_table
        self._ahead = ahead
        self._inbox: deque[Generation | str] = deque()
        self._wake = threading.Condition()
        self._has_arrivals = False  # blocks from the store
        self._is_stopping = False
        self._has_ended = False
        self._stop_by = 0.0
        self._in_flight: Launched | None = None
        self._last_read = 0.0

    # Any thread

    def submit(self, generation: Generation) -> bool:
        """Queue a request; False where the engine has ended meanwhile."""
        return self._put(generation)

    def cancel(self, request_id: str) -> None:
        """End a request, if it is active, before the next step."""
        self._put(request_id)

    def stop(self, grace_seconds: float) -> None:
        """Accept no more requests; end when the active ones are done, or after the grace period."""
        with self._wake:
            self._stop_by = time.monotonic() + grace_seconds
            self._is_stopping = True
            self._wake.notify()

    def wake(self) -> None:
        """The store has sent blocks that the next step can load."""
        with self._wake:
            self._has_arrivals = True
            self._wake.notify()

    @property
    def num_requests(self) -> int:
        return len(self._request_table) + len(self._inbox)

    def _put(self, item: Generation | str) -> bool:
        with self._wake:
            if self._has_ended:
                return False
            self._inbox.append(item)
            self._wake.notify()
            return True

    # The engine's thread

    def run(self) -> None:
        """Serve until stopped."""
        while True:
            is_idle = not self._request_table and self._in_flight is None
            if is_idle:
                self.transfer.when_idle()
            with self._wake:
                while is_idle and not self._inbox and not self._is_stopping:
                    self._wake.wait()
            if self._is_stopping and ((is_idle and not self._inbox) or time.monotonic() >= self._stop_by):
                break
            self._take_in()
            self._request_table.end_expired()
            if not self.step():
                with self._wake:  # a wait for the store must not become a busy loop
                    self._wake.wait_for(lambda: self._inbox or self._has_arrivals or self._is_stopping, _IDLE_SECONDS)

    def end(self) -> None:
        """Cancel the remaining requests and accept no more, also where the loop has never run."""
        with self._wake:
            self._has_ended = True
        self._take_in()
        if self._in_flight is not None:
            self._runner.drain()
            self._in_flight = None
        self._request_table.end_all()
        self.transfer.close(_FLUSH_SECONDS)

    def step(self) -> bool:
        """Launch a step if there is one to compute, and read a launched one; whether there was either."""
        if self._in_flight is None:
            self._last_read = time.perf_counter()
        self._has_arrivals = False
        transfer = self.transfer
        try:
            transfer.before_step()
            plan = self._scheduler.plan(self._pacing.prefill_rows())
            launched = self._runner.launch(plan) if plan is not None else None
            has_launched = launched is not None
            transfer.after_launch()
            if self._ahead:
                launched, self._in_flight = self._in_flight, launched
            results = self._runner.collect(launched) if launched is not None else []
            transfer.after_read()
        except Exception as error:
            _log.exception("a step failed")
            self._runner.drain()
            self._in_flight = None
            transfer.forget()
            self._request_table.fail_all(f"the engine failed: {type(error).__name__}: {error}")
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
