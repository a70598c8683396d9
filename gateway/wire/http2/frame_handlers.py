"""Handling of each type of frame once it is whole (RFC 9113 sections 6, 8.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Block, reply_fault, request_fault, trailer_fault
from gateway.wire.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    MAX_WINDOW,
    STREAM_MASK,
    ErrorCode,
    Http2Error,
    Setting,
    unpack_head,
    unpack_u32,
)
from gateway.wire.http2.peer_state import ENDED, FAULTS, SENDING, SILENT, PeerEvent
from gateway.wire.http2.state import NO_RECEIVER, SETTINGS_COST, ConnectionState
from gateway.wire.http2.stream import Stream, WholeReplyReceiver

# The connection's window is practically unlimited: it is returned in large pieces.
RETURN_AT = 1 << 20
_FIELDS_AND_END = END_HEADERS | END_STREAM
# Replies that have no body, whatever their content-length.
_WITHOUT_BODY = (b"204", b"304")


def take_data(state: ConnectionState, stream_id: int, data: bytes, size: int, ended: bool) -> None:
    """Some of a body; `size` counts the padding too. Raises: Http2Error."""
    if not stream_id:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
    state.owed += size
    if state.owed >= RETURN_AT:
        return_window(state)
    stream = state.streams.get(stream_id)
    if stream is None:
        state.refuse_closed(stream_id, "DATA")
        return
    if stream.peer_state is not SENDING:
        state.fault(stream_id, *FAULTS[stream.peer_state, PeerEvent.DATA])
        return
    stream.receive_window -= size
    if stream.receive_window < 0:
        state.fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more came than the stream's window allows")
        return
    if size != len(data):
        stream.credit(size - len(data))
    if stream.expected_bytes is not None:
        stream.expected_bytes -= len(data)
        if stream.expected_bytes < 0 or (ended and stream.expected_bytes):
            wrong = "the body has not the length that content-length tells"
            state.fault(stream_id, ErrorCode.PROTOCOL_ERROR, wrong)
            return
    if not data and not ended:
        state.count_idle_frame()
        return
    if ended:
        stream.peer_state = ENDED
    stream.receiver.data_received(stream, data, ended)
    if ended:
        _all_received(state, stream)


def return_window(state: ConnectionState) -> None:
    """Return the connection's window."""
    state.emit(frames.window_update(0, state.owed))
    state.owed = 0


def take_block(state: ConnectionState, stream_id: int, payload: bytes, ended: bool) -> None:
    """A complete header block. Raises: Http2Error."""
    if len(payload) > state.limits.max_header_bytes:
        raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header fields are too long")
    _take_fields(state, stream_id, state.decoder.decode(payload), ended)  # for any stream: the table must follow


def _take_fields(state: ConnectionState, stream_id: int, block: Block, ended: bool) -> None:
    stream = state.streams.get(stream_id)
    if stream is None:
        _take_opening(state, stream_id, block, ended)
    elif stream.peer_state is SILENT:
        _take_reply(state, stream, block, ended)
    elif stream.peer_state is SENDING and ended:
        _take_trailers(state, stream, block)
    else:
        event = PeerEvent.FIELDS_END if ended else PeerEvent.FIELDS
        state.fault(stream_id, *FAULTS[stream.peer_state, event])


def take_reply(state: ConnectionState, stream_id: int, data: bytes, start: int, stop: int, end: int) -> int:
    """A complete header block from `start` to `stop`, which all of a unary call's reply may follow: then its receiver
    gets the reply at once. Returns where what is taken stops. Raises: Http2Error."""
    stream = state.streams.get(stream_id)
    if stream is not None and stream.takes_whole_reply and end - stop > 2 * HEAD_BYTES:
        kind, flags, other_id = unpack_head(data, stop)
        body = stop + HEAD_BYTES
        tail = body + (kind >> 8)
        if not flags and not kind & 0xFF and other_id == stream_id and tail + HEAD_BYTES <= end:
            kind, flags, other_id = unpack_head(data, tail)
            fields = tail + HEAD_BYTES
            last: int = fields + (kind >> 8)
            is_end = kind & 0xFF == HEADERS and flags == _FIELDS_AND_END and other_id == stream_id and last <= end
            limits = state.limits
            most = min(limits.max_frame_bytes, limits.max_header_bytes)
            if is_end and stop - start <= most and last - fields <= most and tail - body <= limits.max_frame_bytes:
                block = state.decoder.decode(data[start:stop])
                if stream.peer_state is SILENT and block.fault(_opening_fault) is None:
                    _take_whole_reply(state, stream, block, data[body:tail], data[fields:last])
                    return last
                _take_fields(state, stream_id, block, False)
                return stop
    take_block(state, stream_id, data[start:stop], False)
    return stop


def _opening_fault(block: Block) -> str | None:
    """Why a block does not open a reply that may be taken whole."""
    fault = reply_fault(block)
    if fault is None and (block.length is not None or block.fields[0][1] != b"200"):
        fault = "the reply is not one of a call"
    return fault


def _take_whole_reply(state: ConnectionState, stream: Stream, block: Block, data: bytes, payload: bytes) -> None:
    """`payload` is that of the trailers."""
    trailers = state.decoder.decode(payload)
    size = len(data)
    if 0 < size <= stream.receive_window and trailers.fault(trailer_fault) is None:
        state.owed += size
        stream.peer_state = ENDED
        cast(WholeReplyReceiver, stream.receiver).reply_received(stream, block, data, trailers)
        _all_received(state, stream)
        return
    _take_fields(state, stream.id, block, False)
    take_data(state, stream.id, data, size, False)
    _take_fields(state, stream.id, trailers, True)


def _take_opening(state: ConnectionState, stream_id: int, block: Block, ended: bool) -> None:
    if state.is_client or not stream_id & 1 or stream_id <= state.last_id:
        state.refuse_closed(stream_id, "HEADERS")
        return
    state.last_id = stream_id
    if state.last_taken is not None:
        state.count_idle_frame()
        return  # it is past the last stream of GOAWAY
    fault = block.fault(request_fault)
    if fault is None and ended and block.length:
        fault = "there is no body, but a content-length"
    if fault is not None:
        state.fault(stream_id, ErrorCode.PROTOCOL_ERROR, fault)
        return
    if len(state.streams) >= state.limits.max_streams:
        state.fault(stream_id, ErrorCode.REFUSED_STREAM, "too many streams at the same time")
        return
    stream = Stream(state, stream_id, NO_RECEIVER, state.peer_window, state.window)
    stream.peer_state = ENDED if ended else SENDING
    stream.expected_bytes = block.length
    state.streams[stream_id] = stream
    state.owner.stream_opened(stream, block, ended)


def _take_reply(state: ConnectionState, stream: Stream, block: Block, ended: bool) -> None:
    fault = block.fault(reply_fault)
    if fault is not None:
        state.fault(stream.id, ErrorCode.PROTOCOL_ERROR, fault)
        return
    status = block.fields[0][1]
    if status.startswith(b"1"):
        if ended:
            state.fault(stream.id, *FAULTS[stream.peer_state, PeerEvent.INTERIM_END])
        else:
            state.count_idle_frame()
        return
    # The reply to a HEAD has a length and no body.
    if not ended and status not in _WITHOUT_BODY:
        stream.expected_bytes = block.length
    stream.peer_state = ENDED if ended else SENDING
    stream.receiver.headers_received(stream, block, ended)
    if ended:
        _all_received(state, stream)


def _take_trailers(state: ConnectionState, stream: Stream, block: Block) -> None:
    fault = block.fault(trailer_fault)
    if stream.expected_bytes:
        fault = "the body is shorter than its content-length"
    if fault is not None:
        state.fault(stream.id, ErrorCode.PROTOCOL_ERROR, fault)
        return
    stream.peer_state = ENDED
    stream.receiver.trailers_received(stream, block)
    _all_received(state, stream)


def _all_received(state: ConnectionState, stream: Stream) -> None:
    if stream.is_sent:
        state.stream_ended(stream)
    elif state.is_client:  # the reply is complete: the rest of the request is not needed
        stream.reset(ErrorCode.NO_ERROR)


def _read_priority(state: ConnectionState, flags: int, stream_id: int, payload: bytes) -> None:
    if not stream_id:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
    state.count_idle_frame()
    if len(payload) != 5:
        wrong = "PRIORITY has not 5 bytes"
        if stream_id not in state.streams:  # nothing may be sent on it
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, wrong)
        state.fault(stream_id, ErrorCode.FRAME_SIZE_ERROR, wrong)


def _read_rst_stream(state: ConnectionState, flags: int, stream_id: int, payload: bytes) -> None:
    if len(payload) != 4:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has not 4 bytes")
    state.refuse_idle(stream_id, "RST_STREAM")
    state.flood_guard.count_reset()
    if stream_id in state.streams:
        state.end(stream_id, frames.read_u32(payload), "the stream was reset")
    else:
        state.count_idle_frame()


def _read_settings(state: ConnectionState, flags: int, stream_id: int, payload: bytes) -> None:
    if stream_id:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
    state.count_idle_frame(SETTINGS_COST)
    if flags & ACK:
        if payload:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has a payload")
        return
    window = state.peer_window
    for key, value in frames.read_settings(payload):
        if key == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE cannot be {value}")
            window = value
        elif key == Setting.MAX_FRAME_SIZE:
            if not frames.MIN_MAX_FRAME_BYTES <= value <= frames.MAX_MAX_FRAME_BYTES:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE cannot be {value}")
            state.send_frame_bytes = value
        elif key == Setting.MAX_CONCURRENT_STREAMS:
            state.peer_max_streams = value
        elif key == Setting.HEADER_TABLE_SIZE:
            state.encoder.resize(value)
        elif key == Setting.ENABLE_PUSH and (value > 1 or (value == 1 and state.is_client)):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH cannot be {value}")
    if window != state.peer_window:
        _resize_windows(state, window)
    state.emit(frames.frame(frames.SETTINGS, ACK, 0))
    for stream in [stream for stream in state.streams.values() if stream.is_waiting]:
        stream.push()
    state.owner.settings_changed()


def _resize_windows(state: ConnectionState, value: int) -> None:
    """Section 6.9.2; windows may turn negative."""
    more, state.peer_window = value - state.peer_window, value
    for stream in state.streams.values():
        stream.send_window += more
        if stream.send_window > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window overflows by SETTINGS")


def _read_push_promise(state: ConnectionState, flags: int, stream_id: int, payload: bytes) -> None:
    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which is not allowed here")


def _read_ping(state: ConnectionState, flags: int, stream_id: int, payload: bytes) -> None:
    if stream_id:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
    if len(payload) != 8:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PING has not 8 bytes")
    state.count_idle_frame()
    if not flags & ACK:
        state.emit(frames.frame(frames.PING, ACK, 0, payload))


def _read_goaway(state: ConnectionState, flags: int, stream_id: int, payload: bytes) -> None:
    if stream_id:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
    if len(payload) < 8:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has less than 8 bytes")
    state.count_idle_frame()
    state.is_leaving = True
    last = frames.read_u32(payload) & STREAM_MASK
    state.peer_goaway = frames.read_u32(payload[4:8]), payload[8:264]
    # The peer has not processed these and never will: the requests may be sent elsewhere.
    untaken = [stream for stream in state.streams.values() if stream.id > last and state.is_ours(stream.id)]
    for stream in untaken:
        del state.streams[stream.id]
    state.notify_reset(untaken, ErrorCode.REFUSED_STREAM, "the peer is going away")
    state.owner.peer_is_leaving()


def _read_window_update(state: ConnectionState, flags: int, stream_id: int, payload: bytes) -> None:
    if len(payload) != 4:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has not 4 bytes")
    state.count_idle_frame()
    increment = unpack_u32(payload)[0] & MAX_WINDOW
    if not stream_id:
        if not increment:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        state.granted += increment
        state.send_window += increment
        if state.send_window > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window overflows")
        if state.waiting and not state.is_blocked:
            state.unblock()
        return
    stream = state.streams.get(stream_id)
    if stream is None:
        state.refuse_idle(stream_id, "WINDOW_UPDATE")
        return
    if not increment:
        state.fault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        return
    stream.send_window += increment
    if stream.send_window > MAX_WINDOW:
        state.fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window overflows")
    elif stream.waiting:
        stream.push()


READERS: dict[int, Callable[[ConnectionState, int, int, bytes], None]] = {
    frames.PRIORITY: _read_priority,
    frames.RST_STREAM: _read_rst_stream,
    frames.SETTINGS: _read_settings,
    frames.PUSH_PROMISE: _read_push_promise,
    frames.PING: _read_ping,
    frames.GOAWAY: _read_goaway,
    frames.WINDOW_UPDATE: _read_window_update,
}
