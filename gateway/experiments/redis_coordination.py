"""Coordination through Redis: states, the reports of each gateway, one leader, and decisions.

One gateway leads while it renews its lease; its fencing token is part of each write, so that a paused former leader
changes nothing. All keys have one hash tag, so that a cluster stores them on one node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gateway.experiments.coordination import MAX_DECISIONS, CoordinationState, CountReport, Json
from gateway.experiments.runs import RunState, read_state, write_state
from gateway.redis.bounded_client import Store
from gateway.redis.command import Command, Script, StoreError

_STATES = "pointsman:1:experiments:{all}"
_LEADER = "pointsman:1:experiments:{all}:leader"
_TOKEN = "pointsman:1:experiments:{all}:token"
_REPORTS = "pointsman:1:experiments:{all}:words"
_DECISIONS = "pointsman:1:experiments:{all}:decisions"
_EVIDENCE = "pointsman:1:experiments:{all}:evidence:"

# A gateway without a report for this time is gone; at least this many ticks.
_STALE_SECONDS = 15.0
_STALE_TICKS = 3
# The lease of the leader; at least this many ticks.
_LEASE_SECONDS = 6.0
_LEASE_TICKS = 1.5
# Unused evidence expires.
_EVIDENCE_SECONDS = 30 * 24 * 3600
_DEADLINE_SECONDS = 1.0

# KEYS: states, leader, token, reports; ARGV: gateway, its report, lease (ms), stale (s). A report is "SECONDS JSON".
_BEAT = Script(
    """
    if redis.replicate_commands then redis.replicate_commands() end
    local time = redis.call('TIME')
    local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
    local leader = redis.call('GET', KEYS[2])
    if not leader then
        leader = string.format('%d', redis.call('INCR', KEYS[3])) .. ' ' .. ARGV[1]
        redis.call('SET', KEYS[2], leader, 'PX', ARGV[3])
    elseif string.match(leader, '^%d+ (.*)$') == ARGV[1] then
        redis.call('PEXPIRE', KEYS[2], ARGV[3])
    end
    redis.call('HSET', KEYS[4], ARGV[1], string.format('%.3f ', now) .. ARGV[2])
    redis.call('EXPIRE', KEYS[4], 10 * ARGV[4])
    local words = {}
    if string.match(leader, '^%d+ (.*)$') == ARGV[1] then
        words = redis.call('HGETALL', KEYS[4])
        for at = 1, #words, 2 do
            local said = tonumber(string.match(words[at + 1], '^([%d.]+) '))
            if not said or now - said > tonumber(ARGV[4]) then redis.call('HDEL', KEYS[4], words[at]) end
        end
    end
    return {string.format('%.3f', now), leader, redis.call('HGETALL', KEYS[1]), words}
    """
)

# KEYS: states, leader, decisions; ARGV: token ('' if none is required), name, revision before, the new state
# ("REVISION JSON", '' removes it), decision ('' for none), the number of decisions to keep.
_CHANGE = Script(
    """
    local leader = redis.call('GET', KEYS[2]) or ''
    if ARGV[1] ~= '' and string.match(leader, '^(%d+) ') ~= ARGV[1] then return 0 end
    local known = redis.call('HGET', KEYS[1], ARGV[2])
    local revision = known and string.match(known, '^(%d+) ') or '0'
    if revision ~= ARGV[3] then return 0 end
    if ARGV[4] == '' then redis.call('HDEL', KEYS[1], ARGV[2]) else redis.call('HSET', KEYS[1], ARGV[2], ARGV[4]) end
    if ARGV[5] ~= '' then
        redis.call('LPUSH', KEYS[3], ARGV[5])
        redis.call('LTRIM', KEYS[3], 0, ARGV[6] - 1)
    end
    return 1
    """
)

# KEYS: leader, evidence; ARGV: token, whether to drop everything before (1), time to live (s), names and values in
# turn.
_KEEP = Script(
    """
    local leader = redis.call('GET', KEYS[1]) or ''
    if string.match(leader, '^(%d+) ') ~= ARGV[1] then return 0 end
    if ARGV[2] == '1' then redis.call('DEL', KEYS[2]) end
    for at = 4, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1]) end
    redis.call('EXPIRE', KEYS[2], ARGV[3])
    return 1
    """
)

# KEYS: leader, reports; ARGV: gateway.
_LEAVE = Script(
    """
    local leader = redis.call('GET', KEYS[1]) or ''
    if string.match(leader, '^%d+ (.*)$') == ARGV[1] then redis.call('DEL', KEYS[1]) end
    redis.call('HDEL', KEYS[2], ARGV[1])
    """
)


class RedisCoordination:
    """`tick`: the interval of reports; `lease`: how long leadership lasts without renewal; both in seconds. The caller
    owns the store."""

    def __init__(self, store: Store, me: str, *, tick: float = 5.0, lease: float | None = None) -> None:
        self.me = me
        self._store = store
        self._lease_ms = int(1000 * (lease if lease is not None else max(_LEASE_SECONDS, _LEASE_TICKS * tick)))
        self._stale = max(_STALE_SECONDS, _STALE_TICKS * tick)

    async def beat(self, experiments: Mapping[str, Json]) -> CoordinationState:
        report = json.dumps(experiments, separators=(",", ":"))
        keys = [_STATES, _LEADER, _TOKEN, _REPORTS]
        answer = await self._execute(_BEAT.command(keys, [self.me, report, self._lease_ms, self._stale]))
        now, leader, states, reports = answer
        token, _, name = leader.decode(errors="replace").partition(" ")
        return CoordinationState(
            float(now),
            _states(_pairs(states)),
            int(token) if name == self.me else None,
            name,
            _reports(_pairs(reports), float(now), self._stale),
        )

    async def change(
        self, name: str, state: RunState | None, before: int, decision: Json | None, token: int | None
    ) -> bool:
        data = f"{state.revision} {write_state(state)}" if state is not None else ""
        recorded = json.dumps(decision, separators=(",", ":")) if decision is not None else ""
        arguments = ["" if token is None else token, name, before, data, recorded, MAX_DECISIONS]
        return bool(await self._execute(_CHANGE.command([_STATES, _LEADER, _DECISIONS], arguments)))

    async def record(self, decision: Json) -> None:
        data = json.dumps(decision, separators=(",", ":"))
        await self._execute(("LPUSH", _DECISIONS, data), ("LTRIM", _DECISIONS, 0, MAX_DECISIONS - 1))

    async def decisions(self, limit: int) -> list[Json]:
        values = await self._execute(("LRANGE", _DECISIONS, 0, limit - 1))
        return [data for data in map(_json, values) if isinstance(data, dict)]

    async def save(self, name: str, parts: Mapping[str, Json | list[Json]], token: int, *, is_new: bool) -> None:
        data = [text for part, value in parts.items() for text in (part, json.dumps(value, separators=(",", ":")))]
        await self._execute(_KEEP.command([_LEADER, _EVIDENCE + name], [token, int(is_new), _EVIDENCE_SECONDS, *data]))

    async def load(self, name: str, parts: Sequence[str] = ()) -> dict[str, Any]:
        key = _EVIDENCE + name
        if parts:
            values = await self._execute(("HMGET", key, *parts))
            values = {part: value for part, value in zip(parts, values, strict=True) if value is not None}
        else:
            values = {part.decode(): value for part, value in _pairs(await self._execute(("HGETALL", key))).items()}
        return {part: data for part, value in values.items() if (data := _json(value)) is not None}

    async def close(self) -> None:
        """Release the leadership."""
        with suppress(StoreError):
            await self._execute(_LEAVE.command([_LEADER, _REPORTS], [self.me]))

    async def _execute(self, *commands: Command) -> Any:
        """Returns: the reply to the first command.

        Raises: StoreError, also if Redis refuses.
        """
        answers = await self._store.call(commands, _DEADLINE_SECONDS)
        for answer in answers:
            if isinstance(answer, Exception):
                raise StoreError(f"Redis refuses what experiments keep: {answer}") from answer
        return answers[0]


def _pairs(answer: Any) -> dict[bytes, bytes]:
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _states(data: dict[bytes, bytes]) -> dict[str, RunState]:
    read = {name.decode(): read_state(text.partition(b" ")[2]) for name, text in data.items()}
    return {name: state for name, state in read.items() if state is not None}


def _reports(data: dict[bytes, bytes], now: float, stale: float) -> dict[str, CountReport]:
    """The reports that are not stale."""
    values = {}
    for name, text in data.items():
        reported_at, _, report = text.partition(b" ")
        experiments = _json(report)
        if now - float(reported_at) <= stale and isinstance(experiments, dict):
            values[name.decode()] = CountReport(max(0.0, now - float(reported_at)), experiments)
    return values
