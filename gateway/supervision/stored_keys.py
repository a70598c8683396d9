"""The control process reads the API keys in Redis, and hands them to the workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from gateway.auth.stored_keys import READ, READ_VERSION, entries_of, key_of
from gateway.config.auth_specs import ApiKeySpec
from gateway.config.specs import RulesSpec
from gateway.control.messages import SetKeys
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import StoreError

_log = logging.getLogger(__name__)

# Between two looks at the version, for one look, and between two readings of all keys, should the version not change.
_LOOK_SECONDS = 1.0
_READ_SECONDS = 2.0
_REREAD_SECONDS = 60.0
# Without a reading for so long, the keys are not current: a key that is not among them may be valid.
_CURRENT_SECONDS = 5.0


class StoredKeys:
    """Follows the keys while the rules ask for them."""

    def __init__(
        self, store: BoundedRedis | None, rules: Callable[[], RulesSpec], use: Callable[[SetKeys], None]
    ) -> None:
        self._store = store
        self._rules = rules
        self._use = use
        self._keys: tuple[ApiKeySpec, ...] = ()
        self._version: bytes | None = None
        self._read_at = -_REREAD_SECONDS  # all keys
        self._seen_at: float | None = None  # the last answer of Redis
        self._is_current = True  # as the log has it

    async def follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Read the keys, if they have changed."""
        auth = self._rules().auth
        if auth is None or not auth.redis_keys:
            return
        why = ""
        try:
            await self._read()
            self._seen_at = monotonic()
        except StoreError as error:
            why = str(error)
        except Exception as error:  # a bug must not keep revoked keys
            _log.exception("cannot read the API keys in Redis")
            why = repr(error)
        silent = monotonic() - self._seen_at if self._seen_at is not None else auth.redis_outage + _CURRENT_SECONDS
        is_current = silent < _CURRENT_SECONDS
        if is_current != self._is_current:
            self._is_current = is_current
            if is_current:
                _log.info("the API keys in Redis are current again; there are %d", len(self._keys))
            else:
                hold = f"those known stay valid for {auth.redis_outage:g} s" if self._keys else "none is known"
                _log.error("the API keys in Redis cannot be read: %s; %s, others get 503", why, hold)
        self._use(SetKeys(self._keys if is_current or silent < auth.redis_outage else (), is_current))

    async def _read(self) -> None:
        """Raises: StoreError."""
        if self._store is None:
            raise StoreError("the gateway has no Redis (--redis off)")
        if monotonic() - self._read_at < _REREAD_SECONDS:
            (version,) = await self._store.run(READ_VERSION, timeout=_READ_SECONDS)
            if (version or b"") == self._version:
                return
        (reply,) = await self._store.run(READ, timeout=_READ_SECONDS)
        self._version, entries = entries_of(reply)
        keys = tuple(map(key_of, entries))
        self._read_at = monotonic()
        if keys != self._keys:
            self._keys = keys
            _log.info("there are %d API keys in Redis", len(keys))
