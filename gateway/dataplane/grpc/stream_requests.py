"""The messages of a stream's client, handed on one after another.

With a second model, and where sessions have endpoints of their own, messages wait while the gateway queries whether
their models are decoupled, and while it looks up a session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, cast

from gateway.config.settings import Limits
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.grpc.stream_router import StreamRouter
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.infer_message_head import Names, read_names
from gateway.protocol.message_layouts import LAYOUTS
from gateway.wire.grpc import PREFIX, PREFIX_BYTES, MessageReader, decompress, framed, too_long

# Messages that are handed on before others have a turn.
_MESSAGES_A_TURN = 128
# Of most streams. Never changed.
_NOTHING: deque[tuple[bool, bytes]] = deque()


class RequestReceiver(Protocol):
    """Sends the messages on."""

    def take(self, data: bytes, plain: bytes | None, names: Names) -> None:
        """The next message: `data` has its prefix, `plain` is without it and decompressed, None if not at hand."""

    def second_model_comes(self, first: Names) -> None:
        """Until now all messages were of one model; `first` are the names in the first of them."""

    def holds(self, size: int) -> None:
        """So much of a message that is not whole waits, which may end the call."""

    def requests_go_on(self, error: GatewayError | None) -> None:
        """Messages have waited; `error` is that of the next one."""


class StreamRequests:
    """Reads a client's messages; `limits` are the longest."""

    def __init__(self, taker: RequestReceiver, router: StreamRouter, encoding: bytes, limits: Limits) -> None:
        self._taker: RequestReceiver = taker
        self._router = router
        self._encoding = encoding  # of compressed ones
        self._limits = limits
        self._reader = MessageReader(limits.max_body_bytes)
        self._queue = _NOTHING
        self._lookup: asyncio.Task[None] | None = None
        self._first: Names | None = None
        self.is_one_model = True

    @property
    def is_between_messages(self) -> bool:
        return self._reader.is_between_messages

    @property
    def wait(self) -> bool:
        """Whether messages wait for a query or a lookup."""
        return bool(self._queue)

    def have_turns(self, names: Names) -> bool:
        """Whether the response to a message has its place in the order."""
        return not self.is_one_model and not self._router.is_decoupled((names.model, names.version))

    def feed(self, data: bytes) -> None:
        """Read what came.

        Raises: GatewayError where a message is malformed or too long.
        """
        size = len(data)
        if (
            self.is_one_model
            and not self._router.reads_sessions
            and self._lookup is None
            and size >= PREFIX_BYTES
            and self._reader.is_between_messages
            and PREFIX.unpack_from(data) == (0, size - PREFIX_BYTES)
        ):  # mostly, a piece is one message, and goes on as it is
            if size - PREFIX_BYTES > self._limits.max_body_bytes:
                raise too_long(size - PREFIX_BYTES, self._limits.max_body_bytes)
            names = LAYOUTS.read_names(data, PREFIX_BYTES, size)
            if self._is_of_first_model(names):
                self._taker.take(data, None, names)
            else:
                self._queue_up([(False, data[PREFIX_BYTES:])])
        elif data:
            self._queue_up(self._reader.feed(data))
            self._taker.holds(self._reader.size)

    def end(self) -> None:
        """The client sends no more.

        Raises: GatewayError(BAD_REQUEST) where the last message is not whole.
        """
        if not self._reader.is_between_messages:
            raise GatewayError(ErrorKind.BAD_REQUEST, "the stream ends before its last message is whole")

    def forget(self) -> None:
        self._taker = cast(RequestReceiver, None)  # it refers to this object: no cycle is left to the garbage collector
        self._queue.clear()
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None

    def _queue_up(self, messages: list[tuple[bool, bytes]]) -> None:
        if self._queue is _NOTHING:
            self._queue = deque()
        self._queue += messages
        self._go_on()

    def _go_on(self) -> None:
        num_left = _MESSAGES_A_TURN
        while self._queue:
            lookup = self._lookup
            if lookup is not None:
                return
            num_left -= 1
            if not num_left:
                self._lookup = asyncio.get_running_loop().create_task(self._yield_turn())
                return
            is_compressed, message = self._queue[0]
            plain = message
            if is_compressed:
                plain = decompress(message, self._encoding, self._limits.most_inflated(len(message)))
            names = read_names(plain, 0, len(plain))
            is_of_first = self._is_of_first_model(names)
            is_sticky = self._router.reads_sessions and self._router.is_sticky(names, plain)
            if self.is_one_model and (is_sticky or not is_of_first):
                assert self._first is not None
                self._look_up(self._first)
            if not self.is_one_model:
                self._look_up(names)
            if self._lookup is None and is_sticky and not self._router.lookup_cached():
                self._lookup = asyncio.get_running_loop().create_task(self._look_up_session())
            if self._lookup is None:
                self._queue.popleft()
                self._taker.take(framed(message, compressed=is_compressed), plain, names)

    def _is_of_first_model(self, names: Names) -> bool:
        if self._first is None:
            self._first = names
        return names.model == self._first.model and names.version == self._first.version

    def _look_up(self, names: Names) -> None:
        """Query the model's engine for whether it is decoupled, where that is unknown."""
        target = None
        if self._router.is_decoupled((names.model, names.version)) is None:
            target = self._router.target_to_query(names)
        if target is None:
            self._know(names)
        else:
            self._lookup = asyncio.get_running_loop().create_task(self._query(names, target))

    async def _yield_turn(self) -> None:
        """Let other connections have a turn."""
        await asyncio.sleep(0)
        self._lookup = None
        self._taker_goes_on()

    async def _look_up_session(self) -> None:
        await self._router.look_up()
        self._lookup = None
        self._taker_goes_on()

    async def _query(self, names: Names, target: CallTarget) -> None:
        await self._router.query((names.model, names.version), target)
        self._lookup = None
        self._know(names)
        self._taker_goes_on()

    def _taker_goes_on(self) -> None:
        taker = self._taker
        try:
            self._go_on()
        except GatewayError as error:
            taker.requests_go_on(error)
        else:
            taker.requests_go_on(None)

    def _know(self, names: Names) -> None:
        if self.is_one_model:
            self.is_one_model = False
            self._taker.second_model_comes(names)
