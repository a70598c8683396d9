"""Python's garbage collector, where rules are read and compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection meanwhile, and no later one looks at what exists then: rules are a million objects, none of them
    garbage, and a collection that looked at them all would stop the process for a tenth of a second."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
