"""EventBus in one process: told to all others, heard from all others.

Every worker listens for itself, over a connection of its own: what one hears does not depend on its control process,
and takes one hop. Who has missed something (the stream was cut, trimmed, lost, or Redis failed over) is told so by
`missed`, and reads anew all that news only bring up to date: after the first connection, too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from gateway.events.event_types import Item, read_item, write_item
from gateway.events.redis_stream import (
    BLOCK_SECONDS,
    Position,
    StreamEntry,
    add,
    after,
    continues,
    entry_at,
    last_entry,
    read_entries,
)
from gateway.net.backoff import Backoff
from gateway.redis.asyncio_util import end
from gateway.redis.bounded_client import Store
from gateway.redis.errors import StoreError

_log = logging.getLogger("gateway.events")

T = TypeVar("T", bound=Item)

# A connection that has said nothing for so long is dead: an empty answer comes after BLOCK_SECONDS.
_SILENCE_SECONDS = BLOCK_SECONDS + 1.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


class EventBus:
    """What others tell, from `start` on until `close`. It tells by `store`, which stays the caller's."""

    def __init__(self, store: Store, *, is_quiet: bool = False) -> None:
        """A quiet one leaves it to another process to tell the log of gaps."""
        self._store = store
        self.sender = secrets.token_hex(6)  # nobody hears what he tells himself
        self._ears: dict[type, list[Callable[[Any], None]]] = {}
        self._missed: list[Callable[[], None]] = []
        self._position: Position | None = None
        self._following: asyncio.Task[None] | None = None
        self._level = logging.DEBUG if is_quiet else logging.INFO
        self.is_live = False  # whether what others tell is heard now
        self.heard = 0
        self.gaps = 0  # how often something was missed

    def __repr__(self) -> str:
        state = "live" if self.is_live else "deaf"
        return f"<EventBus by {self._store.address}: {state}, {self.heard} heard, {self.gaps} gaps>"

    def listen(self, kind: type[T], heard: Callable[[T], None]) -> None:
        """Have each item of a kind that others tell passed on; what cannot wait must not be done in `heard`."""
        self._ears.setdefault(kind, []).append(heard)

    def on_missed(self, missed: Callable[[], None]) -> None:
        """Have this called when news may have been missed: what depends on them is to be read anew."""
        self._missed.append(missed)

    def tell(self, item: Item) -> None:
        """Tell all others, soon. Never waits; lost where Redis is away for long."""
        self._store.tell(add(self.sender, *write_item(item)))

    def start(self) -> None:
        self._following = asyncio.get_running_loop().create_task(self._keep_following())

    async def close(self) -> None:
        if self._following is not None:
            await end(self._following)

    # Following the stream

    async def _keep_following(self) -> None:
        from gateway.redis.client import RedisClient  # redis-py, which is large

        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while True:
            caller = RedisClient(self._store.address, timeout=_SILENCE_SECONDS, connections=2)
            try:
                await self._follow(caller)
            except StoreError as error:
                if self.is_live:
                    backoff.reset()
                    self.is_live = False
                _log.debug("%s", error)  # the store tells of outages
            except Exception:  # a fault of ours in an ear must not make this process deaf
                _log.exception("an item of news was not taken")
                self._position = None
            finally:
                await caller.close()
            await asyncio.sleep(backoff.failed() * random.uniform(0.75, 1.25))

    async def _follow(self, caller: Any) -> None:
        """Pass on what comes, until Redis is away.

        Raises: StoreError.
        """
        if self._position is None or not continues(self._position, await _ask(caller, entry_at(self._position))):
            await self._begin(caller)
        self.is_live = True
        while True:
            assert self._position is not None
            for entry in await _ask(caller, after(self._position)):
                if entry.number != self._position.number + 1:
                    await self._begin(caller)
                    break
                self._position = Position(entry.id, entry.number)
                self._pass_on(entry)

    async def _begin(self, caller: Any) -> None:
        """Go on from the last entry, and have all read anew: what changes from here on is heard.

        Raises: StoreError.
        """
        last = await _ask(caller, last_entry())
        is_first = self._position is None
        self._position = Position(last[0].id, last[0].number) if last else Position()
        if not is_first:
            self.gaps += 1
            _log.log(self._level, "news were missed: what they are about is read anew")
        for missed in self._missed:
            missed()

    def _pass_on(self, entry: StreamEntry) -> None:
        if entry.sender == self.sender.encode():
            return
        item = read_item(entry.kind, entry.body)
        if item is None:
            return
        self.heard += 1
        for heard in self._ears.get(type(item), ()):
            heard(item)


async def _ask(caller: Any, command: Any) -> list[StreamEntry]:
    """Raises: StoreError, where it is refused, too."""
    (answer,) = await caller.call([command])
    if isinstance(answer, Exception):
        raise StoreError(f"{command[0]} of the news is refused: {answer}")
    return read_entries(answer)
