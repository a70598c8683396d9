"""What engines said a moment ago, so that not each request asks again."""

from __future__ import annotations

from time import monotonic
from typing import Generic, TypeVar

from gateway.dataplane.context.snapshot import Lane

# A model that is loaded anew with other tensors is known by then.
_REMEMBERED_SECONDS = 10.0
_MAX_REMEMBERED = 1024

Value = TypeVar("Value")


class TtlCache(Generic[Value]):
    """What the engines of lanes said, by what they were asked about; forgotten all at once where it is too much."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[str, ...]], tuple[float, Lane, Value]] = {}

    def get(self, lane: Lane, *key: str) -> Value | None:
        lane = lane.base
        known = self._known.get((id(lane), key))
        # Another lane may have the identity of one that is gone.
        if known is None or known[1] is not lane or monotonic() >= known[0]:
            return None
        return known[2]

    def put(self, lane: Lane, value: Value, *key: str) -> None:
        if len(self._known) >= _MAX_REMEMBERED:
            self._known.clear()
        lane = lane.base
        self._known[(id(lane), key)] = (monotonic() + _REMEMBERED_SECONDS, lane, value)
