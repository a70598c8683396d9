"""A call's header fields, parsed once for all calls of a connection with the same fields.

Source: grpc/grpc `doc/PROTOCOL-HTTP2.md`, `doc/compression.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from engines.host.client_limits import HeaderForward
from engines.host.request_fields import trace_of
from gateway.protocol.grpc_methods import RPCS_BY_PATH
from gateway.wire.http2.field_decoder import OwnNames
from gateway.wire.http2.fields import Block, Field

_TIMEOUT = b"grpc-timeout"
# Fields that plans are made of.
_OF_PLANS = frozenset({b"content-type", b"grpc-encoding", b"grpc-accept-encoding", b"triton_grpc_error"})

_CONTENT_TYPE = b"application/grpc"
# In the order of preference.
_COMPRESSIONS = (b"gzip", b"deflate")


class PreparedCall:
    """The common part of calls with the same fields: `compression` of replies, if any, as a name and zlib's level;
    `forwarded` headers, which the model gets as parameters."""

    def __init__(self, fields: Sequence[Field], forward: HeaderForward, level: int | None) -> None:
        values = self.values = dict(reversed(fields))  # the first of each name
        self.path = values[b":path"]
        self.rpc = RPCS_BY_PATH.get(self.path)
        kind = values.get(b"content-type", b"").partition(b";")[0].partition(b"+")[0]
        self.is_grpc = values[b":method"] == b"POST" and kind == _CONTENT_TYPE
        self.encoding = values.get(b"grpc-encoding", b"identity")
        accepted = [name.strip() for name in values.get(b"grpc-accept-encoding", b"").split(b",")]
        encoding = next((name for name in _COMPRESSIONS if name in accepted), None)
        self.compression = (encoding, level) if encoding is not None and level is not None else None
        self.wants_grpc_errors = values.get(b"triton_grpc_error") == b"true"
        self.forwarded: Mapping[str, str] = forward.parameters(fields) if forward else {}


class Head(NamedTuple):
    """One call's fields. `timeout` is the unparsed value, None without a deadline."""

    plan: PreparedCall
    timeout: bytes | None
    trace: Mapping[str, str]


class HeadReader:
    """Parses heads, and caches them in their header blocks."""

    def __init__(
        self, forward: HeaderForward, compression_level: int | None, guards: Collection[bytes] = frozenset()
    ) -> None:
        """`guards` are headers without which some operations are refused."""
        self._forward = forward
        self._level = compression_level
        of_plans = _OF_PLANS.union(guards)
        self.own_names = OwnNames(lambda name: name not in of_plans and not forward.matches(name))

    def __call__(self, block: Block) -> Head:
        head = block.note
        if not isinstance(head, Head):
            head = block.note = self._read(block)
        return head

    def _read(self, block: Block) -> Head:
        if block.base is not None:
            plan, timeout, trace = self(block.base)
            values = dict(block.own)
            return Head(plan, values.get(_TIMEOUT, timeout), trace_of(values) or trace)
        plan = PreparedCall(block.fields, self._forward, self._level)
        return Head(plan, plan.values.get(_TIMEOUT), trace_of(plan.values))
