"""Answers in the order of their calls (`preserve_ordering`)."""

from __future__ import annotations

from collections import deque

from engines.core.calls import InferenceCall, Sink
from engines.core.messages import InferResponse


class Order:
    """A line of calls: the answers of the first go through as they come, those of the others are kept until it is
    their turn."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: deque[_Lane] = deque()

    def __repr__(self) -> str:
        return f"<Order: {len(self._lanes)} in line>"

    def join(self, call: InferenceCall) -> None:
        """Put a call at the end of the line."""
        call.through(self._lane)

    def _lane(self, sink: Sink) -> _Lane:
        lane = _Lane(self, sink)
        self._lanes.append(lane)
        return lane

    def answer(self, lane: _Lane, response: InferResponse | None, is_final: bool) -> None:
        lane.kept.append((response, is_final))
        if lane.is_flushing:
            return  # a sink that asks anew: the loop below goes on
        while self._lanes and not self._lanes[0].is_flushing and self._lanes[0].kept:
            if not self._flush(self._lanes[0]):
                break

    def _flush(self, lane: _Lane) -> bool:
        """Hand over what the first of the line has; whether it is over."""
        lane.is_flushing = True
        while lane.kept:
            response, is_final = lane.kept.popleft()
            if is_final:
                self._lanes.popleft()
            lane.sink(response, is_final)
            if is_final:
                return True
        lane.is_flushing = False
        return False


class _Lane:
    """The sink of a call in the line."""

    __slots__ = ("_order", "is_flushing", "kept", "sink")

    def __init__(self, order: Order, sink: Sink) -> None:
        self._order = order
        self.sink = sink
        self.kept: deque[tuple[InferResponse | None, bool]] = deque()
        self.is_flushing = False

    def __call__(self, response: InferResponse | None, is_final: bool) -> None:
        self._order.answer(self, response, is_final)
