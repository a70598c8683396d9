"""HTTP/2 peers on the h2 library, which shares no code with the gateway: scripted engines and raw clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    PingAckReceived,
    RequestReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from gateway.protocol.conversion.stream import stream_response
from gateway.wire.grpc import MessageReader, framed

Fields = list[tuple[str, str]]
DEADLINE = 120.0
OPENING: Fields = [(":status", "200"), ("content-type", "application/grpc")]
OK: Fields = [("grpc-status", "0")]
UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Connection(H2Connection):
    """The library's connection, except that open streams continue after GOAWAY (RFC 9113 section 6.8)."""

    def _receive_goaway_frame(self, frame: Any) -> Any:
        state = self.state_machine.state
        found = super()._receive_goaway_frame(frame)
        self.state_machine.state = state
        return found


class Call:
    """One stream of either side: what it has received and sent."""

    def __init__(self, peer: Peer, stream_id: int) -> None:
        self.peer = peer
        self.id = stream_id
        self.fields: Fields = []
        self.interim: list[Fields] = []
        self.trailers: Fields = []
        self.data = bytearray()
        self.messages: list[bytes] = []
        self.compressed: list[bool] = []
        self.ended = False
        self.was_reset: int | None = None
        self.num_sent = 0  # bytes of data
        self.is_reading = True
        self._unread = 0
        self._reader = MessageReader(1 << 31)
        self._num_taken = 0
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Call {self.id} {self.fields} {len(self.data)} bytes {self.trailers} {self.was_reset}>"

    # Received

    def value(self, name: str) -> str | None:
        """The first value of a name, in the trailers or else in the first fields."""
        return next((value for key, value in [*self.trailers, *self.fields] if key == name), None)

    @property
    def status(self) -> int | None:
        reply = self.value("grpc-status")
        return int(reply) if reply is not None else None

    @property
    def is_over(self) -> bool:
        return self.ended or self.was_reset is not None or self.peer.is_lost

    async def when(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def message(self) -> bytes | None:
        """The next message; None where the stream ends without one."""
        at = self._num_taken
        await self.when(lambda: len(self.messages) > at or self.is_over)
        if len(self.messages) <= at:
            return None
        self._num_taken += 1
        return self.messages[at]

    async def over(self) -> Call:
        await self.when(lambda: self.is_over)
        return self

    def pause(self) -> None:
        """Stop giving the peer flow-control window."""
        self.is_reading = False

    def resume(self) -> None:
        self.is_reading = True
        unread, self._unread = self._unread, 0
        if unread and not self.is_over:
            self.peer.acknowledge(unread, self.id)

    # Sending

    def open(self, fields: Fields = OPENING, *, ended: bool = False) -> None:
        self.peer.h2.send_headers(self.id, fields, end_stream=ended)
        self.peer.flush()

    async def send(self, *messages: bytes, ended: bool = False) -> None:
        """Send messages, each with its prefix."""
        await self.send_raw(b"".join(map(framed, messages)), ended=ended)

    async def send_raw(self, data: bytes, *, ended: bool = False) -> None:
        """Send bytes as the windows allow; drop the rest if the stream ends before that."""
        h2 = self.peer.h2
        at = 0
        while at < len(data) or ended:
            if self.was_reset is not None or self.peer.is_lost:
                return
            try:
                room = min(h2.local_flow_control_window(self.id), h2.max_outbound_frame_size)
            except ProtocolError:
                return
            if at < len(data) and room <= 0:
                self.peer.flush()
                await self.wait()
                continue
            piece = data[at : at + room] if at < len(data) else b""
            at += len(piece)
            is_last = at >= len(data)
            h2.send_data(self.id, piece, end_stream=ended and is_last)
            self.num_sent += len(piece)
            if is_last:
                break
        self.peer.flush()
        await self.peer.drain()

    async def wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def end(self, trailers: Fields = OK) -> None:
        self.peer.h2.send_headers(self.id, trailers, end_stream=True)
        self.peer.flush()

    def refuse(self, status: int, message: str = "", *more: tuple[str, str]) -> None:
        """Send a trailers-only reply."""
        self.open([*OPENING, ("grpc-status", str(status)), ("grpc-message", message), *more], ended=True)

    def reset(self, code: int = ErrorCodes.CANCEL) -> None:
        with contextlib.suppress(ProtocolError):
            self.peer.h2.reset_stream(self.id, code)
            self.peer.flush()

    # Events

    def data_came(self, data: bytes, size: int) -> None:
        self.data += data
        with contextlib.suppress(Exception):  # bytes that are not gRPC stay in `data`
            for is_compressed, message in self._reader.feed(data):
                self.messages.append(message)
                self.compressed.append(is_compressed)
        if self.is_reading:
            self.peer.acknowledge(size, self.id)
        else:
            self._unread += size
        self.changed()

    def changed(self) -> None:
        self._changed.set()


class Peer:
    """One HTTP/2 connection of either side."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_client: bool,
        settings: dict[SettingCodes, int] | None = None,
        opened: Callable[[Call], None] = lambda call: None,
    ) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = Connection(H2Configuration(client_side=is_client, header_encoding="latin-1"))
        self.calls: dict[int, Call] = {}
        self.is_lost = False
        self.goaways: list[ConnectionTerminated] = []
        self.num_pings = 0
        self.num_acknowledged = 0
        self._opened = opened
        self._sent = 0
        # A smaller initial window applies only once the peer has acknowledged the settings.
        later = {key: value for key, value in (settings or {}).items() if key == SettingCodes.INITIAL_WINDOW_SIZE}
        first = {key: value for key, value in (settings or {}).items() if key not in later}
        self.h2.local_settings = Settings(client=is_client, initial_values=first)
        self.h2.initiate_connection()
        if later:
            self.h2.update_settings(later)
        self.h2.increment_flow_control_window(1 << 30)
        self.flush()
        self.task = asyncio.get_running_loop().create_task(self._read())

    def flush(self) -> None:
        if not self.is_lost:
            self.writer.write(self.h2.data_to_send())

    async def drain(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    def leave(self, last_id: int, code: int = 0) -> None:
        """Send GOAWAY: the peer opens no more streams; those up to `last_id` continue."""
        self.flush()
        self.writer.write(GoAwayFrame(0, last_stream_id=last_id, error_code=code).serialize())

    def acknowledge(self, size: int, stream_id: int) -> None:
        with contextlib.suppress(ProtocolError):
            self.h2.acknowledge_received_data(size, stream_id)
            self.flush()

    def abort(self) -> None:
        """Break the connection."""
        self.writer.transport.abort()

    async def _read(self) -> None:
        try:
            while data := await self.reader.read(1 << 18):
                for event in self.h2.receive_data(data):
                    self._take(event)
                self.flush()
                for call in list(self.calls.values()):  # windows may have grown
                    call.changed()
        except (ConnectionError, ProtocolError):
            self.writer.transport.abort()
        finally:
            self.is_lost = True
            for call in self.calls.values():
                call.changed()

    def _take(self, event: Any) -> None:
        if isinstance(event, ConnectionTerminated):
            self.goaways.append(event)
        elif isinstance(event, PingAckReceived):
            self.num_pings += 1
        elif isinstance(event, SettingsAcknowledged):
            self.num_acknowledged += 1
        stream_id = getattr(event, "stream_id", None)
        if isinstance(event, RequestReceived):
            call = self.calls[event.stream_id] = Call(self, event.stream_id)
            call.fields = list(event.headers)
            self._opened(call)
        if stream_id not in self.calls:
            return
        call = self.calls[stream_id]
        if isinstance(event, ResponseReceived):
            call.fields = list(event.headers)
        elif isinstance(event, InformationalResponseReceived):
            call.interim.append(list(event.headers))
        elif isinstance(event, TrailersReceived):
            call.trailers = list(event.headers)
        elif isinstance(event, DataReceived):
            call.data_came(event.data, event.flow_controlled_length)
        elif isinstance(event, StreamEnded):
            call.ended = True
        elif isinstance(event, StreamReset):
            call.was_reset = int(event.error_code)
        call.changed()


Script = Callable[[Call], Awaitable[None]]


def echoed(message: bytes) -> bytes:
    """A ModelStreamInferResponse with the message as its response."""
    return stream_response(message)


async def echo(call: Call) -> None:
    """Answer with the message; on a stream, answer each message with a response that holds it."""
    call.open()
    while (message := await call.message()) is not None:
        await call.send(echoed(message) if call.value(":path") == STREAM else message)
    if call.was_reset is None and not call.peer.is_lost:
        call.end()


class GrpcEngine:
    """Runs a script for each call, and stores the calls."""

    def __init__(self, script: Script = echo, *, settings: dict[SettingCodes, int] | None = None) -> None:
        self.script = script
        self.settings = settings
        self.calls: list[Call] = []
        self.peers: list[Peer] = []
        self.address = ""
        self.errors: list[BaseException] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"grpc://{self.address}"

    async def start(self, port: int = 0, **options: Any) -> GrpcEngine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, **options)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    def break_connections(self) -> None:
        for peer in self.peers:
            peer.abort()

    async def stop(self) -> None:
        """Refuse new connections and break open ones; fail the test if a script failed."""
        self.stop_listening()
        self.break_connections()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *[peer.task for peer in self.peers], return_exceptions=True)
        assert not self.errors, self.errors

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, is_client=False, settings=self.settings, opened=self._play)
        self.peers.append(peer)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(peer.task)

    def _play(self, call: Call) -> None:
        self.calls.append(call)
        task = asyncio.get_running_loop().create_task(self._run(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call) -> None:
        try:
            await self.script(call)
        except (TimeoutError, AssertionError, KeyError, TypeError, ValueError) as error:
            self.errors.append(error)
        except ProtocolError:  # the gateway has ended the stream
            pass


class GrpcClient(Peer):
    """A raw client."""

    def call(self, path: str = UNARY, *metadata: tuple[str, str], ended: bool = False) -> Call:
        """Begin a gRPC call."""
        more = [("te", "trailers"), ("content-type", "application/grpc"), *metadata]
        return self.request("POST", path, *more, ended=ended)

    def request(self, method: str, path: str, *fields: tuple[str, str], ended: bool = False) -> Call:
        pseudo = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "gateway")]
        call = Call(self, self.h2.get_next_available_stream_id())
        self.calls[call.id] = call
        self.h2.send_headers(call.id, [*pseudo, *fields], end_stream=ended)
        self.flush()
        return call

    async def ask(self, *messages: bytes, path: str = UNARY, metadata: Fields | None = None) -> Call:
        """Make a whole call."""
        call = self.call(path, *(metadata or []))
        await call.send(*messages, ended=True)
        return await call.over()
