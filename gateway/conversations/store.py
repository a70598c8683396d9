"""Conversations in Redis: read, write, list, delete; each call is atomic there.

A conversation is two keys of one cluster slot: a hash and the list of its turns.

    pointsman:1:talk:{ID}         epoch, revision, session, tenant, created, updated, bytes, tokens, dropped, system
    pointsman:1:talk:{ID}:turns   one turn each, in the form of `turns.written`

The ids of those that a route requires stand in a sorted set, by the millisecond at which each ends. It has no time to
live, so a Redis that evicts what has one tells a lost conversation from one that never was.

    pointsman:1:talks

`1` is the version of this layout.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any

import orjson

from gateway.config.specs import HistorySpec
from gateway.conversations.prompt_assembly import NOTHING, StoredHistory
from gateway.conversations.turns import Turn, read, read_system, written, written_system
from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.canonical import Message
from gateway.protocol.sequence import bounded
from gateway.redis.address import RedisTopology
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import Command, Script, StoreError

# KEYS: the hash, the list. Returns the hash's epoch, revision, dropped, system and bytes, and all turns.
_READ = Script(
    """
    return {
        redis.call('HMGET', KEYS[1], 'epoch', 'revision', 'dropped', 'system', 'bytes'),
        redis.call('LRANGE', KEYS[2], 0, -1),
    }
    """
)

# KEYS: the hash, the list. ARGV: 1 the epoch that was read, empty: none   2 the revision that is to be replaced, empty:
# turns are appended 3 an epoch for a new conversation        4 now, seconds       5 milliseconds to keep it 6 turns, 7
# bytes, 8 tokens at most, empty: whatever comes     9 system messages, empty: as they were 10 session   11 tenant
# 12... turns Returns `kept` and the new revision; `gone`: the conversation that was read was deleted or has expired, so
# nothing of it may return; `changed`: there was a write since the read, and nothing unread may be replaced.
_WRITE = Script(
    """
    local known = redis.call('HMGET', KEYS[1], 'epoch', 'revision', 'bytes', 'tokens', 'dropped', 'system')
    local epoch = known[1] or ''
    if ARGV[1] ~= '' and epoch ~= ARGV[1] then return {'gone', 0} end
    local revision = tonumber(known[2] or '0')
    local bytes, tokens, dropped = tonumber(known[3] or '0'), tonumber(known[4] or '0'), tonumber(known[5] or '0')
    local system = known[6] or ''
    if redis.call('EXISTS', KEYS[2]) == 0 then bytes, tokens = 0, 0 end -- a Redis without memory has dropped them

    if ARGV[2] ~= '' then
        if revision ~= tonumber(ARGV[2]) then return {'changed', revision} end
        redis.call('DEL', KEYS[2])
        bytes, tokens, dropped = 0, 0, 0
    end
    if epoch == '' then
        redis.call('DEL', KEYS[1], KEYS[2])
        redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'created', ARGV[4], 'session', ARGV[10], 'tenant', ARGV[11])
        bytes, tokens, dropped = 0, 0, 0
    end
    if ARGV[9] ~= '' then system = ARGV[9] end

    local function tokens_of(turn) return tonumber(string.match(turn, '^{"role":"%a+","tokens":(%d+)')) end
    for at = 12, #ARGV do
        redis.call('RPUSH', KEYS[2], ARGV[at])
        bytes, tokens = bytes + #ARGV[at], tokens + tokens_of(ARGV[at])
    end

    local count = redis.call('LLEN', KEYS[2])
    if ARGV[6] ~= '' then
        local max_turns, max_bytes, max_tokens = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
        local function is_over()
            return count > max_turns or bytes + #system > max_bytes or tokens + math.ceil(#system / 4) > max_tokens
        end
        while count > 0 and is_over() do
            repeat
                local turn = redis.call('LPOP', KEYS[2])
                bytes, tokens, dropped, count = bytes - #turn, tokens - tokens_of(turn), dropped + 1, count - 1
                local first = redis.call('LINDEX', KEYS[2], 0)
            until not first or string.sub(first, 1, 14) == '{"role":"user"'
        end
        if #system > max_bytes then system = '' end
    end

    redis.call('HSET', KEYS[1], 'revision', revision + 1, 'updated', ARGV[4], 'bytes', bytes, 'tokens', tokens,
        'dropped', dropped, 'system', system)
    redis.call('PEXPIRE', KEYS[1], ARGV[5])
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
    return {'kept', revision + 1}
    """
)


Json = dict[str, Any]

_PREFIX = "pointsman:1:talk:"
_REQUIRED = "pointsman:1:talks"
# Clocks of gateways that share a Redis differ by less.
_CLOCK_SECONDS = 60.0
_LOST = (
    "Redis has lost this conversation before its end: it may evict keys (maxmemory-policy) or has lost its memory. "
    "Begin another session, or delete this one: pointsman conversations delete"
)
_ID_LENGTH = 32  # hexadecimal digits: 128 bits, so that ids do not collide
# The fields of a listing.
_FIELDS = ("session", "tenant", "created", "updated", "revision", "bytes", "tokens", "dropped")
_NUMBERS = frozenset(_FIELDS) - {"session", "tenant"}


def conversation_id(session: str, tenant: str) -> str:
    """The id of a conversation in Redis. It includes the tenant, so that no tenant reads another's session, with a
    length prefix that keeps the two apart."""
    encoded = _encoded(tenant)
    salted = b"%d:%b%b" % (len(encoded), encoded, _encoded(session))
    return hashlib.sha256(salted).hexdigest()[:_ID_LENGTH]


class ConversationLostError(StoreError):
    """A conversation that a route requires is known, and not in Redis any more."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """An exchange to be written at once: the question's turns and the answer."""

    turns: tuple[Turn, ...]
    system: tuple[Message, ...] = ()  # empty: unchanged
    epoch: str = ""  # as read; empty: any
    replaced_revision: int | None = None  # the turns replace this revision; None: they are appended


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation for operators: `about` are the fields of its hash, `turns` OpenAI messages with additional
    fields."""

    about: Json
    system: list[Json]
    turns: list[Json]


class Conversation:
    """A session's conversation. Every method raises StoreError if Redis does not answer within `patience` seconds."""

    def __init__(self, store: BoundedRedis, session: str, tenant: str = "", *, patience: float = 0.05) -> None:
        self._store = store
        self._session = session = bounded(session)
        self._tenant = tenant
        self._patience = patience
        self.key = f"{_PREFIX}{{{conversation_id(session, tenant)}}}"
        self._id = self.key.removeprefix(_PREFIX)
        self._keys = (self.key, f"{self.key}:turns")

    async def read(self) -> StoredHistory:
        """The stored history; NOTHING if there is none."""
        (answer,) = await self._store.run(_READ.command(self._keys, ()), timeout=self._patience)
        return self._read(*answer)

    async def read_required(self) -> StoredHistory:
        """The same, for a route that does not answer without it: an outage of Redis is waited for.

        Raises: ConversationLostError where it was written and should still be there.
        """
        known = ("ZSCORE", _REQUIRED, self._id)
        (fields, turns), ends_at = await self._store.read(_READ.command(self._keys, ()), known, timeout=self._patience)
        is_known = ends_at is not None and float(ends_at) > (time() + _CLOCK_SECONDS) * 1000
        is_whole = fields[0] is not None and (bool(turns) or not int(fields[4] or 0))
        if is_known and not is_whole:
            raise ConversationLostError(_LOST)
        return self._read(fields, turns)

    def _read(self, fields: Sequence[bytes | None], turns: Sequence[bytes]) -> StoredHistory:
        epoch, revision, dropped, system, _ = fields
        if epoch is None:
            return NOTHING
        try:
            return StoredHistory(
                epoch.decode(),
                int(revision or 0),
                int(dropped or 0),
                read_system(system or b""),
                len(system or b""),
                tuple(read(turn) for turn in turns),
                tuple(len(turn) for turn in turns),
            )
        except (ValueError, KeyError, TypeError, AttributeError, GatewayError) as error:
            raise StoreError(f"{self.key} holds what no gateway has written: {error}") from error

    def writing(self, exchange: TurnRecord, spec: HistorySpec, now: int) -> Command:
        """The command that writes an exchange, and drops turns beyond the limits unless a full conversation refuses.

        Raises: GatewayError(UNSUPPORTED) if a turn cannot be stored.
        """
        replaced = "" if exchange.replaced_revision is None else exchange.replaced_revision
        drops = spec.on_overflow == "drop_oldest"
        most = (spec.max_turns, spec.max_bytes, spec.max_tokens) if drops else ("", "", "")
        head = (exchange.epoch, replaced, secrets.token_hex(8), now, round(spec.ttl * 1000), *most)
        owner = (written_system(exchange.system), _encoded(self._session), _encoded(self._tenant))
        return _WRITE.command(self._keys, (*head, *owner, *(written(turn) for turn in exchange.turns)))

    async def write(self, command: Command) -> str:
        """Execute a command of `writing`. Returns: `kept`, `gone` or `changed`, see `_WRITE`."""
        (answer,) = await self._store.run(command, timeout=self._patience)
        return str(answer[0].decode())

    def require(self, spec: HistorySpec) -> None:
        """Record that what was written just now is to be there until its end."""
        now = round(time() * 1000)
        self._store.enqueue(
            ("ZADD", _REQUIRED, now + round(spec.ttl * 1000), self._id), ("ZREMRANGEBYSCORE", _REQUIRED, "-inf", now)
        )

    def enqueue(self, command: Command) -> None:
        """Execute it soon, for a client that has disconnected; not while Redis is unavailable, because queued commands
        occupy memory."""
        if self._store.is_available:
            self._store.enqueue(command)

    async def whole(self) -> StoredConversation | None:
        """The whole conversation, for operators; None if there is none."""
        commands = ("HMGET", self.key, *_FIELDS, "system"), ("LRANGE", self._keys[1], 0, -1)
        fields, stored = await self._store.run(*commands, timeout=self._patience)
        *values, system = fields
        if values[_FIELDS.index("session")] is None:
            return None
        try:
            turns = [orjson.loads(turn) for turn in stored]
            if not all(isinstance(turn, dict) for turn in turns):
                raise ValueError("a turn is no JSON object")
            return StoredConversation(_about(values), orjson.loads(system) if system else [], turns)
        except ValueError as error:
            raise StoreError(f"{self.key} holds what no gateway has written: {error}") from error

    async def delete(self) -> bool:
        """Delete it. Returns whether it existed. Active requests of it are not stored any more."""
        commands = ("DEL", *self._keys), ("ZREM", _REQUIRED, self._id)
        counts = await self._store.run(*commands, timeout=self._patience)
        return any(counts)


async def list_conversations(
    store: BoundedRedis, cursor: int, limit: int, *, patience: float
) -> tuple[list[Json], int]:
    """About `limit` conversations and the cursor for more, 0 at the end. As with SCAN, one that exists throughout is
    returned at least once.

    Raises: StoreError; always for a cluster, where every server has its own cursor.
    """
    if store.address.layout is RedisTopology.CLUSTER:
        raise StoreError("the conversations of a cluster cannot be listed: every server has a cursor of its own")
    scan = ("SCAN", cursor, "MATCH", f"{_PREFIX}{{*}}", "COUNT", limit, "TYPE", "hash")
    ((following, keys),) = await store.run(scan, timeout=patience)
    replies = await store.call([("HMGET", key, *_FIELDS) for key in keys], patience) if keys else []
    found = []
    for values in replies:
        with suppress(ValueError):  # not written by us
            if not isinstance(values, Exception) and values[_FIELDS.index("session")] is not None:
                found.append(_about(values))
    return found, int(following)


def _encoded(text: str) -> bytes:
    """A client's text as bytes; invalid text must not count as a failure of Redis."""
    return text.encode("utf-8", "replace")


def _about(values: Sequence[bytes | None]) -> Json:
    """Raises: ValueError if it was not written by a gateway."""
    return {
        name: int(value or 0) if name in _NUMBERS else (value or b"").decode()
        for name, value in zip(_FIELDS, values, strict=True)
    }
