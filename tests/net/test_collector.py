"""Pauses of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from gateway.net.collector import collector_paused


class Circle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_garbage_is_freed_before_a_pause_exempts_what_exists() -> None:
    """A circle that is garbage when a pause begins would otherwise stay for ever."""
    gc.disable()
    garbage = ref(Circle())
    gc.enable()
    with collector_paused():
        assert garbage() is None
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_pauses_may_overlap() -> None:
    """The collector is paused until the last one ends, in whatever order they end."""
    first, second = collector_paused(), collector_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
