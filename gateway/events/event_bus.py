"""The event bus of one process: events from and to all others, by a numbered stream in Redis.

Every worker reads the stream over a connection of its own, so that events do not depend on its control process and take
one hop. Entries are numbered without gaps. After a gap (the stream was trimmed or lost, or Redis failed over), and
after the first connection, `on_gap` has all state read again that events only keep up to date.

Entry: `n` (its number), `from` (a process), `kind`, `body`. About the last 10,000 are kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.events.event_types import Item, read_item, write_item
from gateway.net.backoff import Backoff
from gateway.redis.bounded_client import BoundedRedis, end
from gateway.redis.command import Command, Script, StoreError

_log = logging.getLogger("gateway.events")

T = TypeVar("T", bound=Item)

STREAM = "pointsman:1:news"
# The sender of events that the admin API publishes.
SENDER_ADMIN = "admin"

_MAX_ENTRIES = 10_000
# How long a read waits in Redis for an entry. A connection without any reply for longer is dead.
BLOCK_SECONDS = 5.0
_SILENCE_SECONDS = BLOCK_SECONDS + 1.0
# Entries per read: a burst must not keep the event loop from requests for long.
_MAX_READ = 100
_PAUSE_SECONDS = 0.05, 1.0  # the first, the longest

# KEYS[1]; ARGV: how many to keep, from, kind, body. The number of the new entry follows that of the last one.
_ADD = Script(
    """
    local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
    local n = (last and tonumber(last[2][2]) or 0) + 1
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*',
               'n', string.format('%d', n), 'from', ARGV[2], 'kind', ARGV[3], 'body', ARGV[4])
    """
)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of the stream; a foreign one has number 0."""

    id: bytes = b"0-0"
    number: int = 0
    sender: bytes = b""
    kind: bytes = b""
    body: bytes = b""


# The position before the first entry.
_START = StreamEntry()


class EventBus:
    """Publishes and receives events from `start` until `close`, through the caller's `store`."""

    def __init__(self, store: BoundedRedis, *, is_quiet: bool = False) -> None:
        """`is_quiet` leaves it to another process to log gaps."""
        self._store = store
        self.sender = secrets.token_hex(6)  # a process does not receive its own events
        self._subscribers: dict[type, list[Callable[[Any], None]]] = {}
        self._gap_callbacks: list[Callable[[], None]] = []
        self._position: StreamEntry | None = None  # the entry that was read last
        self._following: asyncio.Task[None] | None = None
        self._level = logging.DEBUG if is_quiet else logging.INFO
        self.is_live = False  # whether events are received now
        self.received = 0
        self.gaps = 0

    def subscribe(self, kind: type[T], callback: Callable[[T], None]) -> None:
        """Call `callback`, which must not block, with each event of a kind from another process."""
        self._subscribers.setdefault(kind, []).append(callback)

    def on_gap(self, callback: Callable[[], None]) -> None:
        """Call this when events may have been missed, so that the state behind them is read again."""
        self._gap_callbacks.append(callback)

    def publish(self, item: Item) -> None:
        """Publish an event without waiting; it is lost where Redis is away for long."""
        self._store.enqueue(publish_command(self.sender, item))

    def start(self) -> None:
        self._following = asyncio.get_running_loop().create_task(self._keep_following())

    async def close(self) -> None:
        if self._following is not None:
            await end(self._following)

    async def _keep_following(self) -> None:
        from gateway.redis.client import RedisClient  # redis-py, which is large

        backoff = Backoff(*_PAUSE_SECONDS)
        while True:
            client = RedisClient(self._store.address, timeout=_SILENCE_SECONDS, connections=2)
            try:
                await self._follow(client)
            except StoreError as error:
                if self.is_live:
                    backoff.reset()
                    self.is_live = False
                _log.debug("%s", error)  # the store logs outages
            except Exception:  # a bug in a subscriber must not end the reading
                _log.exception("an item of news was not taken")
                self._position = None
            finally:
                await client.close()
            await asyncio.sleep(backoff.failed() * random.uniform(0.75, 1.25))

    async def _follow(self, client: Any) -> None:
        """Dispatch events until Redis is away.

        Raises: StoreError.
        """
        if self._position is None or not _continues(self._position, await _read(client, _entry_at(self._position))):
            await self._restart(client)
        self.is_live = True
        while True:
            assert self._position is not None
            for entry in await _read(client, _entries_after(self._position)):
                if entry.number != self._position.number + 1:
                    await self._restart(client)
                    break
                self._position = entry
                self._dispatch(entry)

    async def _restart(self, client: Any) -> None:
        """Continue from the last entry, and have all state read again: later changes will be received.

        Raises: StoreError.
        """
        last = await _read(client, ("XREVRANGE", STREAM, "+", "-", "COUNT", 1))
        is_first = self._position is None
        self._position = last[0] if last else _START
        if not is_first:
            self.gaps += 1
            _log.log(self._level, "news were missed: what they are about is read again")
        for callback in self._gap_callbacks:
            callback()

    def _dispatch(self, entry: StreamEntry) -> None:
        if entry.sender == self.sender.encode():
            return
        item = read_item(entry.kind, entry.body)
        if item is None:
            return
        self.received += 1
        for callback in self._subscribers.get(type(item), ()):
            callback(item)


def publish_command(sender: str, item: Item) -> Command:
    return _ADD.command([STREAM], [_MAX_ENTRIES, sender, *write_item(item)])


def _entry_at(position: StreamEntry) -> Command:
    """The entry at a position; the first of all where nothing has been read."""
    if not position.number:
        return ("XRANGE", STREAM, "-", "+", "COUNT", 1)
    return ("XRANGE", STREAM, position.id, position.id)


def _entries_after(position: StreamEntry) -> Command:
    block = int(BLOCK_SECONDS * 1000)
    return ("XREAD", "COUNT", _MAX_READ, "BLOCK", block, "STREAMS", STREAM, position.id)


def _continues(position: StreamEntry, entries: Sequence[StreamEntry]) -> bool:
    """Whether the stream is the one that was read up to a position, by the reply to `_entry_at`."""
    if not position.number:
        return not entries or entries[0].number == 1
    return bool(entries) and entries[0].number == position.number


async def _read(client: Any, command: Command) -> list[StreamEntry]:
    """Raises: StoreError, also where Redis refuses the command."""
    (reply,) = await client.call([command])
    if isinstance(reply, Exception):
        raise StoreError(f"{command[0]} of the news is refused: {reply}")
    return _entries(reply)


def _entries(reply: Any) -> list[StreamEntry]:
    """The entries of a reply to XRANGE, XREVRANGE or XREAD, however the protocol's version nests them."""
    if isinstance(reply, dict):
        return [entry for part in reply.values() for entry in _entries(part)]
    if isinstance(reply, list):
        return [entry for part in reply for entry in _entries(part)]
    if not isinstance(reply, tuple):
        return []
    id, fields = reply
    try:
        return [StreamEntry(id, int(fields[b"n"]), fields[b"from"], fields[b"kind"], fields[b"body"])]
    except (KeyError, TypeError, ValueError):
        return [StreamEntry(id)]
