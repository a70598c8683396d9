"""Threads for hooks that may block. They end with the process: one that never returns must not keep it alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

# Of one process: plain methods wait for files and sockets. Calls beyond these wait, within their limit.
MAX_THREADS = 16

_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class HookThreads:
    """At most `most` threads, started when they are needed."""

    def __init__(self, most: int = MAX_THREADS) -> None:
        self._most = most
        self._num_threads = 0
        self._idle = threading.Semaphore(0)
        self._calls: SimpleQueue[_Call] = SimpleQueue()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        """The result of a call in a thread; cancelled, the call is left out, or its result dropped."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._calls.put((loop, future, function, arguments))
        if not self._idle.acquire(blocking=False) and self._num_threads < self._most:
            self._num_threads += 1
            threading.Thread(target=self._work, name=f"hook-{self._num_threads}", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            try:
                loop, future, function, arguments = self._calls.get_nowait()
            except Empty:
                self._idle.release()
                loop, future, function, arguments = self._calls.get()
            if not future.cancelled():
                result = error = None
                try:
                    result = function(*arguments)
                except BaseException as raised:  # the operator's code; a thread goes on
                    error = raised
                try:
                    loop.call_soon_threadsafe(_settle, future, result, error)
                except RuntimeError:  # the event loop is closed
                    return
                del result, error
            del loop, future, function, arguments


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration) or not isinstance(error, Exception):
        future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))  # a future takes no such
    else:
        future.set_exception(error)
