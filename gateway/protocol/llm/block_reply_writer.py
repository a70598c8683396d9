"""What the writers of Anthropic's messages and OpenAI's responses have in common: a reply is a list of blocks (content
blocks, output items), and a stream opens, fills and closes them one after another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import orjson

from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.protocol.llm.json_fields import Fields


class ReplyBlock(ABC):
    """What the model said, thought or called, as it grows; `prefix` is all of a delta's event before its text."""

    prefix: bytes

    def __init__(self) -> None:
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @abstractmethod
    def beginning(self) -> list[Fields]:
        """The events before its first delta."""

    @abstractmethod
    def ending(self, is_complete: bool) -> list[Fields]:
        """The events after its last delta; it is incomplete where a limit has cut it off."""


Block = TypeVar("Block", bound=ReplyBlock)


class BlockReplyWriter(ABC, Generic[Block]):
    """Writes one reply: of the choices of one that has several, the first.

    In a stream, deltas go out as they come; the end waits for the usage, which engines tell last.
    """

    head_bytes = None
    _has_logprobs = False  # whether its API has a place for them

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        self._generation = generation
        self._id, self._created, self._model = id, created, model or generation.model
        self._is_stream = True
        self._has_started = self._is_over = False
        self._blocks: list[Block] = []
        self._open: Block | None = None
        self._open_kind: type[Event] | None = None  # of the deltas that the open block is made of
        self._calls: dict[int, Block] = {}  # by position
        self._finished: Finished | None = None
        self._used: TokenUsage | None = None

    def feed(self, events: Sequence[Event]) -> bytes:
        """The events of the stream that tell these."""
        out: list[bytes] = []
        for event in events:
            if self._open_kind is TextDelta and type(event) is TextDelta and not event.index and event.logprobs is None:
                if event.text:
                    self._write_more(self._open, event.text, out)  # type: ignore[arg-type]
            else:
                self._write_event(event, out)
        return b"".join(out)

    def end(self) -> bytes:
        """How the reply ends, where that is not told yet."""
        out: list[bytes] = []
        self._close(out)
        return b"".join(out)

    def whole(self, events: Sequence[Event]) -> tuple[int, bytes]:
        """The status and the body that tell these."""
        self._is_stream = False
        out: list[bytes] = []
        for event in events:
            if isinstance(event, EngineFailed):
                return event.status, self._error(event)
            self._write_event(event, out)
        self._close(out)
        return 200, orjson.dumps(self._reply())

    def _write_event(self, event: Event, out: list[bytes]) -> None:
        if self._is_over:
            return
        if isinstance(event, EngineFailed):
            self._fail(event, out)
        elif isinstance(event, TokenUsage):
            self._used = event
            if self._finished is not None:
                self._close(out)
        elif isinstance(event, Started):
            self._start(event, out)
        elif event.index:
            return
        elif isinstance(event, TextDelta):
            if event.text or (event.logprobs and self._has_logprobs):
                self._write_text(self._block_for(event, out), event, out)
        elif isinstance(event, ReasoningDelta):
            if event.text or event.signature:
                self._write_reasoning(event, out)
        elif isinstance(event, ToolCallDelta):
            block = self._calls.get(event.position)
            if block is None:
                block = self._calls[event.position] = self._open_block(event, out)
            if event.arguments:
                self._write_more(block, event.arguments, out)
        else:
            self._finished = event
            self._close_block(out)

    def _write_text(self, block: Block, event: TextDelta, out: list[bytes]) -> None:
        self._write_more(block, event.text, out)

    def _write_reasoning(self, event: ReasoningDelta, out: list[bytes]) -> None:
        block = self._block_for(event, out)
        if event.text:
            self._write_more(block, event.text, out)
        if event.signature:
            self._sign(block, event.signature, out)
            self._close_block(out)  # a signature proves all of a block

    def _block_for(self, event: Event, out: list[bytes]) -> Block:
        """The open block, or a new one where that is of another kind."""
        return self._open if self._open and self._open_kind is type(event) else self._open_block(event, out)

    def _open_block(self, event: Event, out: list[bytes]) -> Block:
        self._start(Started(), out)
        self._close_block(out)
        block = self._open = self._new_block(event)
        self._open_kind = type(event)
        self._blocks.append(block)
        if self._is_stream:
            for fields in block.beginning():
                self._write(fields, out)
        return block

    def _close_block(self, out: list[bytes]) -> None:
        block, self._open, self._open_kind = self._open, None, None
        if block is not None:
            is_complete = self._finished is None or self._finished.reason not in ("length", "content_filter")
            events = block.ending(is_complete)
            if self._is_stream:
                for fields in events:
                    self._write(fields, out)

    def _start(self, event: Started, out: list[bytes]) -> None:
        """Begins the reply; only once, also where another engine goes on with it."""
        if not self._has_started:
            self._has_started = True
            self._id, self._model = event.id or self._id, event.model or self._model
            self._created = event.created or self._created
            if self._is_stream:
                self._write_start(out)

    def _close(self, out: list[bytes]) -> None:
        if not self._is_over:
            self._start(Started(), out)
            self._close_block(out)
            self._is_over = True
            if self._is_stream:
                self._write_end(out)

    def _write(self, fields: Fields, out: list[bytes]) -> None:
        """Writes one event of the stream."""
        out.append(b"event: %b\ndata: %b\n\n" % (fields["type"].encode(), orjson.dumps(fields)))

    @abstractmethod
    def _new_block(self, event: Event) -> Block:
        """The block that a delta is the first of."""

    @abstractmethod
    def _write_more(self, block: Block, text: str, out: list[bytes]) -> None:
        """Writes a delta of a block."""

    @abstractmethod
    def _sign(self, block: Block, signature: str, out: list[bytes]) -> None: ...

    @abstractmethod
    def _write_start(self, out: list[bytes]) -> None: ...

    @abstractmethod
    def _write_end(self, out: list[bytes]) -> None: ...

    @abstractmethod
    def _fail(self, failure: EngineFailed, out: list[bytes]) -> None:
        """Ends the stream by a failure."""

    @abstractmethod
    def _error(self, failure: EngineFailed) -> bytes:
        """The body of a whole reply that tells a failure."""

    @abstractmethod
    def _reply(self) -> Fields:
        """The whole reply."""
