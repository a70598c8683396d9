"""Taking the frames that carry no message: settings, windows, pings, resets and farewells (RFC 9113 section 6)."""

from __future__ import annotations

from collections.abc import Callable

from gateway.wire.http2 import frames
from gateway.wire.http2.flood_guard import SETTINGS_COST
from gateway.wire.http2.frames import ACK, MAX_WINDOW, STREAM_MASK, ErrorCode, Http2Error, Setting, unpack_u32
from gateway.wire.http2.state import ConnectionState


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
    state.patience.count_reset()
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
    # What it has not taken up it never will: whoever asked may ask elsewhere.
    untaken = [stream for stream in state.streams.values() if stream.id > last and state.is_ours(stream.id)]
    for stream in untaken:
        del state.streams[stream.id]
    state.tell(untaken, ErrorCode.REFUSED_STREAM, "the peer is going away")
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
