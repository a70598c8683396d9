"""Layouts of ModelInferRequests by size: the next message of a size mostly has its fields at the same places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from engines.core.messages import WantedOutput
from engines.host.request_fields import RequestParameters
from gateway.protocol.conversion.raw_contents import INPUT_TAG
from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf_wire import BYTES, read_tag, read_varint

_ID_TAG = 0x1A  # field 3, bytes
# Messages of one size before its layout is cached; cached layouts of a size; cached sizes.
_WORTH = 4
_MAX_LAYOUTS = 4
_MAX_SIZES = 512
_MAX_SEEN = 4096
_MAX_FIXED_BYTES = 4096
_MAX_FIELDS = 64

Span = tuple[int, int]


class CommonFields(NamedTuple):
    """The common part of messages of one layout: all but the id and the tensors' values."""

    model: str
    version: str
    parameters: RequestParameters
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, datatype, shape
    outputs: tuple[WantedOutput, ...]
    classes: Mapping[str, int]  # by output


class MessageLayout(NamedTuple):
    """`fixed` are bytes at places of the message; between them are its id and the raw tensors."""

    fixed: tuple[tuple[int, bytes], ...]
    id: Span | None
    raws: tuple[Span, ...]
    common: CommonFields


class Layouts:
    """The layouts of one server's messages, in bounded memory, each with its common value."""

    def __init__(self) -> None:
        self._layouts: dict[int, list[MessageLayout]] = {}
        self._seen: dict[int, int] = {}

    def find(self, data: bytes, at: int, end: int) -> MessageLayout | None:
        """The layout of the message in `data[at:end]`, None where it is not cached."""
        for layout in self._layouts.get(end - at, ()):
            for start, expected in layout.fixed:
                if not data.startswith(expected, at + start):
                    break
            else:
                return layout
        return None

    def learn(self, data: bytes, at: int, end: int, common: CommonFields) -> None:
        """Count a well-formed message without a cached layout, and cache it where it comes often."""
        size = end - at
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        times = self._seen[size] = self._seen.get(size, 0) + 1
        if times < _WORTH:
            return
        del self._seen[size]
        layout = _layout_of(data, at, end, common)
        if layout is None:
            return
        if len(self._layouts) >= _MAX_SIZES:
            self._layouts.clear()
        of_size = self._layouts.setdefault(size, [])
        of_size.insert(0, layout)
        del of_size[_MAX_LAYOUTS:]


def _layout_of(data: bytes, at: int, end: int, common: CommonFields) -> MessageLayout | None:
    """None for messages with fields of other kinds, two ids, or too many fields."""
    begin = fixed_from = at
    fixed: list[tuple[int, bytes]] = []
    raws: list[Span] = []
    id: Span | None = None
    num_fields = num_fixed = 0
    try:
        while at < end:
            tag, at = read_tag(data, at)
            num_fields += 1
            if tag & 7 != BYTES or num_fields > _MAX_FIELDS or (tag == _ID_TAG and id is not None):
                return None
            size, at = read_varint(data, at)
            if tag in (_ID_TAG, INPUT_TAG):
                fixed.append((fixed_from - begin, data[fixed_from:at]))
                span = (at - begin, at - begin + size)
                if tag == _ID_TAG:
                    id = span
                else:
                    raws.append(span)
                fixed_from = at + size
            at += size
    except (IndexError, GatewayError):
        return None
    if fixed_from < end:
        fixed.append((fixed_from - begin, data[fixed_from:end]))
    num_fixed = sum(len(piece) for _, piece in fixed)
    if at != end or num_fixed > _MAX_FIXED_BYTES:
        return None
    return MessageLayout(tuple(fixed), id, tuple(raws), common)
