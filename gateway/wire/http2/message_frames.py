"""Taking what HEADERS and DATA carry: requests, replies and their trailers (RFC 9113 section 8.1)."""

from __future__ import annotations

from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Block, reply_fault, request_fault, trailer_fault
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.http2.interfaces import NOBODY
from gateway.wire.http2.state import ConnectionState
from gateway.wire.http2.stream import Stream

# The connection's window is as good as open: it is given back in large pieces.
RETURN_AT = 1 << 20
# Replies that have no body, whatever their content-length tells.
_WITHOUT_BODY = (b"204", b"304")


def take_data(state: ConnectionState, stream_id: int, data: bytes, size: int, ended: bool) -> None:
    """Some of a body; `size` counts the padding too.

    Raises: Http2Error.
    """
    if not stream_id:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
    state.owed += size
    if state.owed >= RETURN_AT:
        return_window(state)
    stream = state.streams.get(stream_id)
    if stream is None:
        state.refuse_closed(stream_id, "DATA")
        return
    if stream.is_received:
        state.fault(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end of the stream")
        return
    stream.receive_window -= size
    if stream.receive_window < 0:
        state.fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more came than the stream's window allows")
        return
    if not stream.has_headers:
        state.fault(stream_id, ErrorCode.PROTOCOL_ERROR, "DATA before the header fields")
        return
    if size != len(data):
        stream.credit(size - len(data))
    if stream.expected_bytes >= 0:
        stream.expected_bytes -= len(data)
        if stream.expected_bytes < 0 or (ended and stream.expected_bytes):
            wrong = "the body has not the length that content-length tells"
            state.fault(stream_id, ErrorCode.PROTOCOL_ERROR, wrong)
            return
    if not data and not ended:
        state.count_idle_frame()
        return
    if ended:
        stream.is_received = True
    stream.receiver.data_received(stream, data, ended)
    if ended:
        _all_received(state, stream)


def return_window(state: ConnectionState) -> None:
    """Give the connection's window back."""
    state.emit(frames.window_update(0, state.owed))
    state.owed = 0


def take_block(state: ConnectionState, stream_id: int, payload: bytes, ended: bool) -> None:
    """A whole header block.

    Raises: Http2Error.
    """
    if len(payload) > state.limits.max_header_bytes:
        raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header fields are too long")
    block = state.decoder.decode(payload)  # whoever it is for: the table must follow
    stream = state.streams.get(stream_id)
    if stream is None:
        _take_opening(state, stream_id, block, ended)
    elif stream.is_received:
        state.fault(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of the stream")
    elif stream.has_headers:
        _take_trailers(state, stream, block, ended)
    else:
        _take_reply(state, stream, block, ended)


def _take_opening(state: ConnectionState, stream_id: int, block: Block, ended: bool) -> None:
    if state.is_client or state.is_ours(stream_id) or stream_id <= state.last_id:
        state.refuse_closed(stream_id, "HEADERS")
        return
    state.last_id = stream_id
    if state.last_taken is not None:
        state.count_idle_frame()
        return  # the peer was told that nobody would
    fault = block.fault(request_fault)
    if fault is None and ended and block.length:
        fault = "there is no body, but a content-length"
    if fault is not None:
        state.fault(stream_id, ErrorCode.PROTOCOL_ERROR, fault)
        return
    if len(state.streams) >= state.limits.max_streams:
        state.fault(stream_id, ErrorCode.REFUSED_STREAM, "too many streams at the same time")
        return
    stream = Stream(state, stream_id, NOBODY, state.peer_window, state.window)
    stream.has_headers = True
    stream.is_received = ended
    if block.length is not None:
        stream.expected_bytes = block.length
    state.streams[stream_id] = stream
    state.owner.stream_opened(stream, block, ended)


def _take_reply(state: ConnectionState, stream: Stream, block: Block, ended: bool) -> None:
    fault = block.fault(reply_fault)
    if fault is not None:
        state.fault(stream.id, ErrorCode.PROTOCOL_ERROR, fault)
        return
    status = block.fields[0][1]
    if status.startswith(b"1"):  # an interim reply
        if ended:
            state.fault(stream.id, ErrorCode.PROTOCOL_ERROR, "an interim reply ends the stream")
        else:
            state.count_idle_frame()
        return
    # The reply to a HEAD tells a length and has no body.
    if block.length is not None and not ended and status not in _WITHOUT_BODY:
        stream.expected_bytes = block.length
    stream.has_headers = True
    stream.is_received = ended
    stream.receiver.headers_received(stream, block, ended)
    if ended:
        _all_received(state, stream)


def _take_trailers(state: ConnectionState, stream: Stream, block: Block, ended: bool) -> None:
    fault = block.fault(trailer_fault)
    if not ended:
        fault = "trailers do not end the stream"
    elif stream.expected_bytes > 0:
        fault = "the body is shorter than its content-length"
    if fault is not None:
        state.fault(stream.id, ErrorCode.PROTOCOL_ERROR, fault)
        return
    stream.is_received = True
    stream.receiver.trailers_received(stream, block)
    _all_received(state, stream)


def _all_received(state: ConnectionState, stream: Stream) -> None:
    if stream.is_sent:
        state.stream_ended(stream)
    elif state.is_client:  # the reply is whole: nobody reads the rest of the request
        stream.reset(ErrorCode.NO_ERROR)
