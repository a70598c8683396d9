"""Waiting for a condition instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

from tritonclient.utils import InferenceServerException

T = TypeVar("T")


def eventually(get: Callable[[], T], timeout_seconds: float = 120.0) -> T:
    """Repeat the call until its answer is true; fail with the last answer when it takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while not (answer := get()):
        assert time.monotonic() < deadline, f"still {answer!r} after {timeout_seconds:g} s"
        time.sleep(0.02)
    return answer


def released(unregister: Callable[[], object]) -> bool:
    """Unregister a region of shared memory, or all, unless Triton still holds one: its gRPC server releases a region
    only after its reply."""
    try:
        unregister()
    except InferenceServerException as error:
        if "currently in use" not in str(error) and "Failed to unregister the following" not in str(error):
            raise
        return False
    return True
