"""Python's garbage collector: how often it looks, and where it does not."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects between two collections of the youngest, and collections of each generation between two of the next. Neither
# requests nor rules create reference circles: by default, with 700 objects, collections cost more than routing, and
# more than reading a long file.
_THRESHOLDS = 20_000, 20, 50


def relax_collector() -> None:
    """Have the process collect seldom."""
    gc.set_threshold(*_THRESHOLDS)


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
