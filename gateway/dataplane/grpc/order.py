"""The order of responses on a stream whose requests go several ways.

A model that answers each request once answers them in the order of the requests, whichever engine each went to; a
decoupled model's responses come when they come. Source: Triton's stream_infer_handler.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class _Owed:
    """A request whose response has not been written to the client."""

    __slots__ = ("is_settled", "model", "request_id", "response", "way")

    def __init__(self, way: Hashable, model: bytes, request_id: bytes) -> None:
        self.way = way
        self.model = model
        self.request_id = request_id
        self.response = b""
        self.is_settled = False  # the response has come, or never will

    def may_be_of(self, model: bytes, request_id: bytes) -> bool:
        """Whether a response can be of this request, by what it says; an empty text says nothing."""
        return (not model or self.model == model) and (
            not request_id or not self.request_id or self.request_id == request_id
        )


class ResponseOrder:
    """Holds back the responses that have come before their turn. A `way` is whatever an engine's stream is known by."""

    __slots__ = ("_held_bytes", "_owed", "_unanswered")

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()  # in the order of the requests
        self._unanswered: dict[Hashable, deque[_Owed]] = {}  # the same, of each way
        self._held_bytes: dict[Hashable, int] = {}

    def __repr__(self) -> str:
        return f"<ResponseOrder {len(self._owed)} owed, {sum(self._held_bytes.values())} bytes held>"

    def held_bytes(self, way: Hashable) -> int:
        """How much of what came this way waits for its turn."""
        return self._held_bytes.get(way, 0)

    def expect(self, way: Hashable, model: bytes, request_id: bytes) -> None:
        """A request that is answered once is on its way; `model` as its engine calls it."""
        owed = _Owed(way, model, request_id)
        self._owed.append(owed)
        self._unanswered.setdefault(way, deque()).append(owed)

    def place(self, way: Hashable, model: bytes, request_id: bytes, response: bytes) -> list[bytes]:
        """A response has come: what may be written now. `model` is empty where it does not say whom it is of."""
        unanswered = self._unanswered.get(way, ())
        for owed in unanswered:  # it is the first, but where an engine answers several models as they come
            if owed.may_be_of(model, request_id):
                break
        else:  # nobody is known to wait for it: a decoupled model's
            return [response]
        self._unanswered[way].remove(owed)
        owed.response, owed.is_settled = response, True
        self._held_bytes[way] = self.held_bytes(way) + len(response)
        return self._take()

    def abandon(self, way: Hashable) -> list[bytes]:
        """No more comes this way: what may be written now that nobody waits for it."""
        for owed in self._unanswered.pop(way, ()):
            owed.is_settled = True
        return self._take()

    def _take(self) -> list[bytes]:
        ready: list[bytes] = []
        while self._owed and self._owed[0].is_settled:
            owed = self._owed.popleft()
            if owed.response:
                self._held_bytes[owed.way] -= len(owed.response)
                ready.append(owed.response)
        return ready


# Where nothing is expected, as on most streams: whatever comes is written at once. Never told to expect something.
NO_ORDER = ResponseOrder()
