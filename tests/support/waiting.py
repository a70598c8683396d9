"""Waiting for what must become true, instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

from tritonclient.utils import InferenceServerException

T = TypeVar("T")


def eventually(ask: Callable[[], T], timeout_seconds: float = 30.0) -> T:
    """Ask again and again until the answer is true; fails with the last answer when it takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"still {answer!r} after {timeout_seconds:g} s"
        time.sleep(0.02)
    return answer


def released(unregister: Callable[[], object]) -> bool:
    """Unregister a region of shared memory, unless Triton still holds it: its gRPC front lets go of a region only some
    time after it has answered."""
    try:
        unregister()
    except InferenceServerException as error:
        if "currently in use" not in str(error):
            raise
        return False
    return True
