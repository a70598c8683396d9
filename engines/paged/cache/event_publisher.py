"""Publishes which blocks the prefix cache holds, in vLLM's format: routers send a prompt where its beginning is.

A ZeroMQ PUB socket sends a batch after each step that changed the cache; a ROUTER socket, where there is one, sends the
last batches again to subscribers that missed some. Neither has authentication, and events have the tokens of prompts:
both are closed unless an option names their addresses, which belong to a private network.

Source: vLLM, `vllm/distributed/kv_events.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from engines.core.errors import invalid
from gateway.protocol.kv_events import (
    END_OF_REPLAY,
    SEQUENCE_BYTES,
    AllBlocksCleared,
    BlocksRemoved,
    BlocksStored,
    KvEvent,
    write_batch,
)

_log = logging.getLogger(__name__)

_MEDIUM = "GPU"  # vLLM's word for the memory that an engine computes in
_KEPT_BATCHES = 10_000  # for subscribers that missed some; vLLM's default
_KEPT_BYTES = 64 << 20
_QUEUED_MESSAGES = 100_000  # of a slow subscriber, who misses those after
_POLL_SECONDS = 0.1

Publish = Callable[[Sequence[KvEvent]], None]


class CachedSequence(Protocol):
    """What events need of a sequence; `request.adapter` is the name of its LoRA adapter."""

    request: Any
    tokens: list[int]

    def names(self, num_blocks: int) -> list[bytes]: ...


class CacheEvents:
    """Collects the changes of a prefix cache, on the engine's thread; `flush` publishes them as one batch.

    A block is published as stored once, when a sequence that has its tokens names or finds it.
    """

    def __init__(self, block_size: int, publish: Publish) -> None:
        self._block_size = block_size
        self._publish = publish
        self._stored: set[bytes] = set()
        self._events: list[KvEvent] = []

    def named(self, sequence: CachedSequence, first: int, end: int) -> None:
        """The blocks of a sequence at the places [first, end) are in the cache."""
        names = sequence.names(end)
        while first < end and names[first] in self._stored:
            first += 1
        if first == end:
            return
        self._stored.update(names[first:])
        tokens = sequence.tokens[first * self._block_size : end * self._block_size]
        parent = names[first - 1] if first else None
        adapter = sequence.request.adapter
        stored = BlocksStored(names[first:], parent, tokens, self._block_size, None, _MEDIUM, adapter)
        self._events.append(stored)

    def evicted(self, name: bytes | None) -> None:
        """The block of a name is gone; None: all are."""
        if name is None:
            self._stored.clear()
            self._events.append(AllBlocksCleared())
        elif name in self._stored:
            self._stored.remove(name)
            last = self._events[-1] if self._events else None
            if isinstance(last, BlocksRemoved):
                self._events[-1] = last._replace(block_hashes=[*last.block_hashes, name])
            else:
                self._events.append(BlocksRemoved([name], _MEDIUM))

    def flush(self) -> None:
        """Publish what has changed."""
        if self._events:
            self._publish(self._events)
            self._events = []


class EventPublisher:
    """The sockets, and the thread that writes to them."""

    def __init__(self, address: str, replay_address: str | None = None) -> None:
        """Bind `address`, as tcp://127.0.0.1:5557, and that of replays.

        Raises: EngineError where pyzmq is missing, or an address cannot be bound.
        """
        try:
            import zmq
        except ImportError:
            raise invalid('kv_events: it needs pyzmq; pip install "pointsman[kv-events]"') from None
        self._context: Any = zmq.Context()
        self._sockets: list[Any] = []
        try:
            self._publishing = self._bound("kv_events", address, zmq.PUB)
            self._replaying = None
            if replay_address is not None:
                self._replaying = self._bound("kv_events_replay", replay_address, zmq.ROUTER)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._queue: SimpleQueue[tuple[float, Sequence[KvEvent]] | None] = SimpleQueue()
        self._kept: deque[tuple[bytes, bytes]] = deque()
        self._kept_bytes = 0
        self._next = 0
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send events as a batch; any thread may call it, and none waits."""
        self._queue.put((time.time(), events))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _bound(self, option: str, address: str, kind: int) -> Any:
        import zmq

        bound = self._context.socket(kind)
        bound.set_hwm(_QUEUED_MESSAGES)
        bound.ipv6 = "[" in address
        try:
            bound.bind(address)
        except zmq.ZMQError as error:
            raise invalid(f"{option}: {address} cannot be bound: {error.strerror}") from None
        return bound

    def _run(self) -> None:
        try:
            while True:
                self._replay()
                try:
                    item = self._queue.get(timeout=_POLL_SECONDS)
                except Empty:
                    continue
                if item is None:
                    break
                self._send(*item)
        except Exception:
            _log.exception("KV events are no longer published")
        finally:
            self._context.destroy(linger=0)

    def _send(self, timestamp: float, events: Sequence[KvEvent]) -> None:
        message = self._next.to_bytes(SEQUENCE_BYTES, "big"), write_batch(timestamp, events)
        self._next += 1
        self._publishing.send_multipart((b"", *message))
        self._kept.append(message)
        self._kept_bytes += len(message[1])
        while len(self._kept) > _KEPT_BATCHES or self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _replay(self) -> None:
        """Answer a request for the batches from a sequence number on, if there is one."""
        if self._replaying is None or not self._replaying.poll(0):
            return
        client, *_, wanted = self._replaying.recv_multipart()
        first = int.from_bytes(wanted, "big")
        for number, payload in self._kept:
            if int.from_bytes(number, "big") >= first:
                self._replaying.send_multipart((client, b"", number, payload))
        self._replaying.send_multipart((client, b"", END_OF_REPLAY, b""))
