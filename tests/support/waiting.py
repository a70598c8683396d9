"""Waiting for what must become true, instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(ask: Callable[[], T], timeout_seconds: float = 15.0) -> T:
    """Ask again and again until the answer is true; fails with the last answer when it takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"still {answer!r} after {timeout_seconds:g} s"
        time.sleep(0.02)
    return answer
