"""Captures: requests with their replies, as workers send them to the shadow process."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

_SIZES = struct.Struct(">III")  # of the facts, the request, the answer


@dataclass(frozen=True, slots=True)
class CapturedFacts:
    """The facts of a request beside its bytes; times are seconds."""

    route: str
    engine: str  # that answered, or was chosen
    model: str | None  # the engine's name for it, where the route sets one
    request_id: str
    head: str  # Latin-1; of REST the request's line and fields, ready to be sent; of gRPC the fields, one a line
    is_call: bool  # by gRPC: request and answer are protobuf messages
    answer_encoding: str  # of gRPC
    status: int  # HTTP's, or gRPC's
    seconds: float  # until the end of the answer
    first_seconds: float  # until it began


@dataclass(frozen=True, slots=True)
class Capture:
    """`answer` is all that the client was sent: of REST with head and framing, of gRPC its framed messages."""

    facts: CapturedFacts
    request: bytes
    answer: bytes


def encode(facts: CapturedFacts, request: Sequence[bytes], answer: Sequence[bytes]) -> list[bytes]:
    """A capture as it goes over the socket, in pieces that are not joined."""
    facts_json = orjson.dumps([getattr(facts, name) for name in CapturedFacts.__slots__])
    sizes = _SIZES.pack(len(facts_json), sum(map(len, request)), sum(map(len, answer)))
    return [sizes, facts_json, *request, *answer]


class CaptureReader:
    """Cuts what comes over a socket into captures."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Capture]:
        buffer = self._buffer
        buffer += data
        found: list[Capture] = []
        while len(buffer) >= _SIZES.size:
            facts_json, request, answer = _SIZES.unpack_from(buffer)
            begin = _SIZES.size + facts_json
            end = begin + request + answer
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:  # released before the buffer shrinks
                facts = CapturedFacts(*orjson.loads(view[_SIZES.size : begin]))
                request, answered = bytes(view[begin : begin + request]), bytes(view[begin + request : end])
            found.append(Capture(facts, request, answered))
            del buffer[:end]
        return found


class Copy:
    """A copy of a body of up to `max_bytes`; of a longer one, nothing is kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.pieces: list[bytes] = []
        self.size = 0
        self.is_whole = True

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self.size <= self._max_bytes:
            self.pieces.append(data)
        elif self.is_whole:
            self.is_whole = False
            self.pieces.clear()
