"""The header blocks of a call's reply: the engine's with the gateway's own fields, or a status of the gateway's."""

from __future__ import annotations

from gateway.dataplane.context.outcome import ENERGY_FIELD
from gateway.dataplane.context.reply_fields import EVERY_REPLY
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.engine_load import read_energy
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import read_message, read_status, write_message, write_timeout
from gateway.wire.http1.head import GATEWAY_FIELDS
from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.hpack import CachedHeaders, literal_name, with_value
from gateway.wire.http2.stream import Stream

OPENING: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc"), *EVERY_REPLY]
TRAILERS_OK = CachedHeaders([(b"grpc-status", b"0")])
_REQUEST_ID = b"x-request-id"
_REQUEST_ID_NAME = literal_name(_REQUEST_ID)
_TIMEOUT_NAME = literal_name(b"grpc-timeout")


class RelayedBlock:
    """A block of an engine's reply as its client gets it. `status` is the gRPC status in it, with its `message`; None
    where it has none."""

    __slots__ = ("http_status", "joules", "message", "status", "steady")

    def __init__(self, block: Block, route_target: RouteTarget) -> None:
        fields = [
            field
            for field in block.fields
            if field[0] not in (_REQUEST_ID, b"content-length") and not field[0].startswith(GATEWAY_FIELDS)
        ]
        is_opening = block.fields[:1] and block.fields[0][0] == b":status"
        if is_opening:
            fields += route_target.reply_fields + EVERY_REPLY
        self.steady = CachedHeaders(fields)
        status = block.value(b"grpc-status")
        self.status = read_status(status) if status is not None else None
        energy = block.value(ENERGY_FIELD)
        self.joules = read_energy(energy) if energy is not None else None  # the call's energy
        self.message = read_message(block.value(b"grpc-message"))
        self.http_status = int(block.fields[0][1]) if is_opening else 200


class RelayedBlocks(dict[object, RelayedBlock]):
    """One block of an engine's reply for the clients of each target, by the target's key."""


def relayed(block: Block, route_target: RouteTarget) -> RelayedBlock:
    """The block for the clients of a target, made once for each time that the engine's fields change."""
    if route_target.pin_fields:  # of one call
        return RelayedBlock(block, route_target)
    cached = block.note
    if not isinstance(cached, RelayedBlocks):
        cached = block.note = RelayedBlocks()
    relayed_block = cached.get(route_target.key)
    if relayed_block is None:
        relayed_block = cached[route_target.key] = RelayedBlock(block, route_target)
    return relayed_block


def request_id_literal(request_id: bytes) -> bytes:
    size = len(request_id)
    if size < 0x7F:
        return b"%b%c%b" % (_REQUEST_ID_NAME, size, request_id)
    return with_value(_REQUEST_ID_NAME, request_id)


def timeout_literal(seconds: float) -> bytes:
    value = write_timeout(seconds)
    return b"%b%c%b" % (_TIMEOUT_NAME, len(value), value)


def status_fields(code: int, message: str) -> list[Field]:
    """The trailers of a status that is not OK."""
    return [(b"grpc-status", b"%d" % code), (b"grpc-message", write_message(message))]


def send_status(
    stream: Stream, fields: list[Field], request_id: bytes, route_target: RouteTarget | None, *, begun: bool = False
) -> None:
    if begun:
        stream.send_trailers(CachedHeaders(fields))
    else:
        named = route_target.reply_fields if route_target is not None else []
        stream.send_headers(CachedHeaders(OPENING + fields + named), request_id_literal(request_id), ended=True)


def fell_behind(min_rate: int) -> GatewayError:
    """The client sends a message too slowly."""
    what = f"the request's message comes slower than {min_rate} bytes a second (--min-rate)"
    return GatewayError(ErrorKind.REQUEST_TIMEOUT, what)


def fell_silent(limit: float) -> GatewayError:
    """The client has sent nothing for `limit` seconds, in the middle of a message."""
    return GatewayError(ErrorKind.REQUEST_TIMEOUT, f"no more of the request's message came for {limit:g} s")
