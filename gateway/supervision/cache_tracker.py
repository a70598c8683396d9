"""Follows the prefix caches of engines with `prefix.events`, and informs the workers.

One thread for each such engine reads the events of its endpoints and tokenizes the prompts that workers report. The
workers' part costs them a report of each new prompt, and a message about what has changed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.config.engine_specs import EndpointSpec, EngineSpec, KvEventsSpec
from gateway.control.messages import Message, PromptsSeen, UpdateCachedBlocks
from gateway.observability.stats import CacheEvents
from gateway.protocol.errors import GatewayError
from gateway.protocol.kv_events import SEQUENCE_BYTES
from gateway.upstream.cached_blocks import BlockChanges, CachedBlocks
from gateway.upstream.kv_event_stream import KvEventStream
from gateway.upstream.prefix_index import checksums_of, compared_bytes
from gateway.upstream.prompt_tokens import PromptTokenizer
from gateway.upstream.tracked_prefix_index import SeenPrompt

_log = logging.getLogger(__name__)

_MAX_PROMPTS = 1024  # that wait to be tokenized; more are followed when they are seen again
_MAX_MESSAGE_BYTES = 16 << 20  # a longer one ends its connection
_MAX_SOCKETS = 16_000  # three of each endpoint; ZeroMQ's default, 1023, is enough for 340
_QUEUED_MESSAGES = 10_000  # of one endpoint; those after are replayed, or lost
_MESSAGES_AT_ONCE = 64  # of one endpoint, before the next one's turn
_PROMPTS_UNTIL_MATCH = 256  # of which one is found, where the tokenizer is the engine's
_POLLIN = 1  # zmq.POLLIN, of a library that may be missing
_REPLAY_SECONDS = 2.0  # without a batch, until a replay is given up
_REPLAY_TOTAL_SECONDS = 10.0
_HEARTBEAT_MS, _SILENCE_MS = 5_000, 15_000  # a peer that answers no heartbeat is gone

OnChanges = Callable[[Mapping[str, BlockChanges]], None]


class CacheTracker:
    """Of one gateway; `send` sends a message to all workers."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._followers: dict[str, CacheFollower] = {}

    def use(self, engines: Mapping[str, EngineSpec]) -> None:
        """Follow the caches of these engines; unchanged ones go on."""
        wanted = {name: engine for name, engine in engines.items() if _is_tracked(engine)}
        for name, follower in list(self._followers.items()):
            if name not in wanted or follower.prefix != wanted[name].prefix:
                self._followers.pop(name).close()
        for name, engine in wanted.items():
            if name not in self._followers:
                self._followers[name] = self._follow(name, engine)
            self._followers[name].use(engine.endpoints)

    def receive(self, seen: PromptsSeen) -> None:
        """Workers have seen these prompts."""
        if (follower := self._followers.get(seen.engine)) is not None:
            follower.add_prompts(seen.prompts)

    @property
    def counts(self) -> dict[str, CacheEvents]:
        """What has come, by engine."""
        return {name: follower.counts for name, follower in self._followers.items()}

    async def close(self) -> None:
        followers, self._followers = self._followers, {}
        for follower in followers.values():
            follower.close()
        for follower in followers.values():
            await asyncio.to_thread(follower.join)

    def _follow(self, name: str, engine: EngineSpec) -> CacheFollower:
        loop = asyncio.get_running_loop()

        def on_changes(changes: Mapping[str, BlockChanges]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._send, UpdateCachedBlocks(name, changes))

        follower = CacheFollower(engine, on_changes)
        follower.start()
        return follower


def _is_tracked(engine: EngineSpec) -> bool:
    return engine.prefix.events is not None and engine.balance.traits.by_prompt


class CacheFollower(threading.Thread):
    """Follows the endpoints of one engine; `on_changes` is called on its thread."""

    def __init__(self, engine: EngineSpec, on_changes: OnChanges) -> None:
        super().__init__(name=f"kv-events-{engine.name}", daemon=True)
        self.prefix = engine.prefix
        self._engine_name = engine.name
        self._on_changes = on_changes
        self._blocks = CachedBlocks(engine.prefix.max_entries)
        self._prompts: deque[SeenPrompt] = deque()
        self._endpoints: deque[tuple[EndpointSpec, ...]] = deque(maxlen=1)  # to be used
        self._is_stopping = False
        self._has_warned = False
        self._waker, self._woken = socket.socketpair()
        for each in (self._waker, self._woken):
            each.setblocking(False)

    # Any thread

    def use(self, endpoints: tuple[EndpointSpec, ...]) -> None:
        self._endpoints.append(endpoints)
        self._wake()

    def add_prompts(self, prompts: Iterable[SeenPrompt]) -> None:
        for prompt in prompts:
            if len(self._prompts) < _MAX_PROMPTS:
                self._prompts.append(prompt)
        self._wake()

    @property
    def counts(self) -> CacheEvents:
        blocks = self._blocks
        return CacheEvents(blocks.num_events, blocks.num_gaps, blocks.num_joined, blocks.num_unplaced, len(blocks))

    def close(self) -> None:
        self._is_stopping = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # woken already, or ended
            self._waker.send(b"\0")

    # Its thread

    def run(self) -> None:
        try:
            self._follow()
        except ImportError as error:
            what = 'prefix.events needs pyzmq and tokenizers: pip install "pointsman[kv-events]"'
            _log.error("engine '%s': %s (%s)", self._engine_name, what, error)
        except (OSError, ValueError) as error:
            _log.error("engine '%s': its prefix caches are not followed: %s", self._engine_name, error)
        except Exception:
            _log.exception("engine '%s': its prefix caches are no longer followed", self._engine_name)
        finally:
            self._waker.close()
            self._woken.close()

    def _follow(self) -> None:
        import zmq

        spec = self.prefix.events
        assert spec is not None
        self._max_bytes = compared_bytes(self.prefix)
        self._tokenizer = PromptTokenizer(Path(spec.tokenizer), self.prefix.block_bytes, self._max_bytes)
        with zmq.Context() as context:
            context.max_sockets = _MAX_SOCKETS
            poller = zmq.Poller()
            poller.register(self._woken, _POLLIN)
            followed: dict[EndpointSpec, Subscription] = {}
            try:
                while not self._is_stopping:
                    is_waiting = not self._prompts and not self._endpoints
                    ready = dict(poller.poll(None if is_waiting else 0))
                    if self._woken.fileno() in ready:
                        self._woken.recv(4096)
                    if self._endpoints:
                        self._change_endpoints(context, poller, followed, self._endpoints.pop(), spec)
                    for subscription in list(followed.values()):
                        subscription.read(ready)
                    self._join_prompt()
                    if changes := self._blocks.take_changes():
                        self._on_changes(changes)
            finally:
                for subscription in followed.values():
                    subscription.close()

    def _change_endpoints(
        self,
        context: Any,
        poller: Any,
        followed: dict[EndpointSpec, Subscription],
        endpoints: tuple[EndpointSpec, ...],
        spec: KvEventsSpec,
    ) -> None:
        import zmq

        for gone in followed.keys() - set(endpoints):
            poller.unregister(followed[gone].socket)
            poller.unregister(followed[gone].monitor)
            followed.pop(gone).close()
        self._blocks.keep(endpoint.url for endpoint in endpoints)
        for endpoint in endpoints:
            if endpoint not in followed:
                try:
                    subscription = Subscription(context, endpoint, spec, self._blocks)
                except zmq.ZMQError as error:  # no more sockets, an address that is none
                    what = "the KV events of %s of engine '%s' cannot be followed: %s"
                    _log.warning(what, endpoint.url, self._engine_name, error)
                    continue
                followed[endpoint] = subscription
                poller.register(subscription.socket, _POLLIN)
                poller.register(subscription.monitor, _POLLIN)

    def _join_prompt(self) -> None:
        """Tokenize the oldest prompt; events have their turn between two."""
        if not self._prompts:
            return
        prompt = self._prompts.popleft()
        data = prompt.body[prompt.start : prompt.start + self._max_bytes]
        checksums = checksums_of(data, self.prefix.block_bytes, self._max_bytes)
        if checksums and self._blocks.knows(checksums[-1]):
            self._blocks.refresh(checksums)
            return
        try:
            tokenized = self._tokenizer.tokenize(*prompt)
        except (GatewayError, ValueError, RecursionError) as error:  # the engine refuses it, too
            _log.debug("engine '%s': a prompt is not followed: %s", self._engine_name, error)
            return
        except Exception:  # no prompt ends the thread
            _log.exception("engine '%s': a prompt cannot be followed", self._engine_name)
            return
        if tokenized is not None:
            self._blocks.join(tokenized)
            self._check()

    def _check(self) -> None:
        """Warn once where the events are of no use."""
        blocks, events = self._blocks, self.prefix.events
        if not self._has_warned and blocks.num_joined >= _PROMPTS_UNTIL_MATCH and not blocks.is_matched:
            self._has_warned = True
            what = "no prompt has the tokens that its endpoints store: is %s the folder of the model that they serve?"
            _log.warning(f"engine '%s': {what}", self._engine_name, events and events.tokenizer)
        elif not self._has_warned and blocks.is_full and blocks.num_unplaced:
            self._has_warned = True
            what = "its endpoints have more blocks than prefix.max_entries, %d: those beyond are not followed"
            _log.warning(f"engine '%s': {what}", self._engine_name, self.prefix.max_entries)


class Subscription:
    """The sockets of one endpoint."""

    def __init__(self, context: Any, endpoint: EndpointSpec, spec: KvEventsSpec, blocks: CachedBlocks) -> None:
        import zmq

        self._context = context
        self._host, self._port = address_of(endpoint, spec)
        # Of endpoints that share a host, each has its own ports, as far apart as the engine's
        self._replay_port = None if spec.replay_port is None else self._port + spec.replay_port - spec.port
        self.stream = KvEventStream(endpoint.url, blocks, None if spec.replay_port is None else self._replay)
        self.socket = context.socket(zmq.SUB)
        self.socket.set_hwm(_QUEUED_MESSAGES)
        self.socket.ipv6 = True
        self.socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
        self.socket.setsockopt(zmq.SUBSCRIBE, spec.topic.encode())
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.socket.connect(f"tcp://{self._host}:{self._port}")

    def read(self, ready: Mapping[Any, int]) -> None:
        """Take in what has come. Batches are taken out before the connection's state is read: those that came by a
        connection that is lost by now say nothing about the engine behind the next one."""
        if self.socket not in ready and self.monitor not in ready:
            return
        batches = self._receive()
        if self._update_connection():
            for number, payload in batches:
                self.stream.receive(number, payload)
            return
        for _ in range(_QUEUED_MESSAGES // _MESSAGES_AT_ONCE):
            if not self._receive():
                break

    def _update_connection(self) -> bool:
        """Take in its changes. Returns whether none was lost."""
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        was_lost = False
        while self.monitor.poll(0):
            if recv_monitor_message(self.monitor)["event"] == zmq.EVENT_DISCONNECTED:
                was_lost = True
                self.stream.lost()
            else:
                self.stream.connected()
        return not was_lost

    def _receive(self) -> list[tuple[int, bytes]]:
        """The next batches, with their numbers; none where no message waits."""
        import zmq

        batches = []
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(frames) == 3 and len(frames[1]) == SEQUENCE_BYTES:
                batches.append((int.from_bytes(frames[1], "big"), frames[2]))
        return batches

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)

    def _replay(self, first: int) -> Iterator[tuple[int, bytes]]:
        import zmq

        until = time.monotonic() + _REPLAY_TOTAL_SECONDS
        with self._context.socket(zmq.DEALER) as replaying:
            replaying.linger = 0
            replaying.ipv6 = True
            replaying.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
            replaying.connect(f"tcp://{self._host}:{self._replay_port}")
            replaying.send_multipart((b"", first.to_bytes(SEQUENCE_BYTES, "big")))
            while time.monotonic() < until and replaying.poll(_REPLAY_SECONDS * 1000):
                frames = replaying.recv_multipart()
                number = int.from_bytes(frames[-2], "big", signed=True) if len(frames) > 1 else -1
                if number < 0:
                    return
                yield number, frames[-1]


def address_of(endpoint: EndpointSpec, spec: KvEventsSpec) -> tuple[str, int]:
    """Host (IPv6 in brackets) and port of an endpoint's events."""
    if endpoint.kv_events is not None:
        host, _, port = endpoint.kv_events.rpartition(":")
        return host, int(port)
    host = urlsplit(endpoint.url).hostname or ""
    return (f"[{host}]" if ":" in host else host), spec.port
