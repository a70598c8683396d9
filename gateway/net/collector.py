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


class _Pauses:
    """The pauses under way: they overlap where rules arrive while others are compiled."""

    def __init__(self) -> None:
        self._num = 0
        self._was_enabled = False

    def begin(self) -> None:
        if not self._num:
            # What is garbage by now would otherwise be exempt from collections for ever, with all that it refers to.
            gc.collect()
            self._was_enabled = gc.isenabled()
            gc.disable()
        self._num += 1

    def end(self) -> None:
        self._num -= 1
        if not self._num:
            gc.freeze()
            if self._was_enabled:
                gc.enable()


_pauses = _Pauses()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection meanwhile, and no later one looks at what exists then: rules are a million objects, none of them
    garbage, and a collection that looked at them all would stop the process for a tenth of a second."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()
