"""The one thread that touches the device: it loads the model, and runs its steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class OwnThread:
    """Does one thing after another. It ends with the process, or when it is told to."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def begin(self, task: Callable[[], Result]) -> Future[Result]:
        """Have it done, after what was begun before."""
        future: Future[Result] = Future()
        self._tasks.put((future, task))
        return future

    def end(self) -> None:
        """Wait until all that was begun is done, and end. On the thread itself: end then, without waiting."""
        self._tasks.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            future, task = item
            try:
                future.set_result(task())
            except BaseException as error:  # whoever waits for it raises it
                future.set_exception(error)
            del item, future, task
