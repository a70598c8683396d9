"""The order of responses on a stream whose requests go several ways.

A model that answers each request once answers them in the order of the requests, whichever engine each went to; a
decoupled model's responses come when they come. Source: Triton's stream_infer_handler.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class _Owed:
    """A request that has not been answered to the client."""

    __slots__ = ("model", "request_id", "response", "way")

    def __init__(self, way: Hashable, model: bytes, request_id: bytes) -> None:
        self.way = way
        self.model = model
        self.request_id = request_id
        self.response: bytes | None = None


class ResponseOrder:
    """Holds back the responses that have come before their turn. A `way` is whatever an engine's stream is known by."""

    __slots__ = ("_owed", "held_bytes")

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()
        self.held_bytes: dict[Hashable, int] = {}  # by the way that they came

    def __repr__(self) -> str:
        return f"<ResponseOrder {len(self._owed)} owed, {sum(self.held_bytes.values())} bytes held>"

    def expect(self, way: Hashable, model: bytes, request_id: bytes) -> None:
        """A request that is answered once is on its way; `model` as its engine calls it."""
        self._owed.append(_Owed(way, model, request_id))

    def place(self, way: Hashable, model: bytes, request_id: bytes, response: bytes) -> list[bytes]:
        """A response has come: what may be written now. `model` is empty where it does not say whom it is of."""
        owed = self._find(way, model, request_id)
        if owed is None:  # nobody is known to wait for it: a decoupled model's
            return [response]
        owed.response = response
        self.held_bytes[way] = self.held_bytes.get(way, 0) + len(response)
        return self._take()

    def _find(self, way: Hashable, model: bytes, request_id: bytes) -> _Owed | None:
        """The first request of this way that the response can be of."""
        for owed in self._owed:
            if (
                owed.way is way
                and owed.response is None
                and (not model or owed.model == model)
                and (not request_id or not owed.request_id or owed.request_id == request_id)
            ):
                return owed
        return None

    def _take(self) -> list[bytes]:
        ready: list[bytes] = []
        while self._owed and self._owed[0].response is not None:
            owed = self._owed.popleft()
            assert owed.response is not None
            self.held_bytes[owed.way] -= len(owed.response)
            ready.append(owed.response)
        return ready
