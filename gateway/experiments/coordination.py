"""Where runs are stored and which gateway leads: for a single gateway, or through Redis for several."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import time
from typing import Any

from gateway.experiments.runs import RunState, read_state, write_state
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import Command, Script, StoreError

_log = logging.getLogger("pointsman")

Json = dict[str, Any]

# The decisions that are kept; the oldest are dropped first.
MAX_DECISIONS = 1000
# A file of decisions with more lines is rewritten with the newest ones.
_MAX_LINES = 2 * MAX_DECISIONS


@dataclass(frozen=True, slots=True)
class CountReport:
    """A gateway's last report of its counts and its age in seconds. Per experiment: its `turn` and its `arms`."""

    age: float
    experiments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class CoordinationState:
    """The reply to a beat. `token` is this gateway's fencing token, None if another leads; only the leader receives the
    reports of all gateways."""

    now: float  # by the shared clock, seconds since 1970
    states: Mapping[str, RunState]
    token: int | None = None
    leader: str = ""
    reports: Mapping[str, CountReport] = field(default_factory=dict)


class LocalCoordination:
    """The coordination of a single gateway, which always leads: files in `folder`, or only in memory if None."""

    me = "this gateway"  # this process's name

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time) -> None:
        self._folder = folder
        self._clock = clock
        self._states: dict[str, RunState] = {}
        self._parts: dict[str, dict[str, Any]] = {}
        self._decisions: deque[Json] = deque(maxlen=MAX_DECISIONS)
        self._num_lines = 0
        self._has_complained = False
        if folder is not None:
            self._read(folder)

    async def beat(self, experiments: Mapping[str, Json]) -> CoordinationState:
        """Report counts, acquire or renew the leadership, and read the shared states."""
        return CoordinationState(
            self._clock(), dict(self._states), 1, self.me, {self.me: CountReport(0.0, experiments)}
        )

    async def change(
        self, name: str, state: RunState | None, before: int, decision: Json | None, token: int | None
    ) -> bool:
        """Replace the state of revision `before` (0: none) and record the decision; None removes it.

        Returns False if the revision differs, or `token` no longer leads.
        """
        stored = self._states.get(name)
        if (stored.revision if stored is not None else 0) != before:
            return False
        if state is None:
            self._states.pop(name, None)
            self._parts.pop(name, None)
        else:
            self._states[name] = state
        self._write("states.json", {each: asdict(state) for each, state in self._states.items()})
        if decision is not None:
            await self.record(decision)
        return True

    async def record(self, decision: Json) -> None:
        self._decisions.append(decision)
        if self._num_lines >= _MAX_LINES:
            self._write("decisions.jsonl", *self._decisions)
            self._num_lines = len(self._decisions)
        else:
            self._write("decisions.jsonl", decision, appends=True)
            self._num_lines += 1

    async def decisions(self, limit: int) -> list[Json]:
        """The last decisions, newest first."""
        return list(reversed(self._decisions))[:limit]

    async def save(self, name: str, parts: Mapping[str, Json | list[Json]], token: int, *, is_new: bool) -> None:
        """Store parts of an experiment's evidence by name; `is_new` drops all others."""
        stored = {} if is_new else self._parts.get(name, {})
        self._parts[name] = {**stored, **parts}
        self._write(f"evidence-{name}.json", self._parts[name])

    async def load(self, name: str, parts: Sequence[str] = ()) -> dict[str, Any]:
        """Read those parts, or all."""
        state = self._parts.get(name, {})
        return {part: state[part] for part in parts or state if part in state}

    async def close(self) -> None:
        """Nothing is open."""

    # Files

    def _read(self, folder: Path) -> None:
        """Read the files of an earlier process; unreadable ones are ignored."""
        for name, data in _read_json(folder / "states.json").items():
            state = read_state(json.dumps(data))
            if state is not None:
                self._states[name] = state
                self._parts[name] = _read_json(folder / f"evidence-{name}.json")
        with suppress(OSError):
            for line in (folder / "decisions.jsonl").read_text(errors="replace").splitlines():
                self._num_lines += 1
                with suppress(ValueError):
                    decision = json.loads(line)
                    if isinstance(decision, dict):
                        self._decisions.append(decision)

    def _write(self, name: str, *lines: Any, appends: bool = False) -> None:
        """Replace a file atomically, or append to it."""
        if self._folder is None:
            return
        file, partial = self._folder / name, self._folder / f"{name}.partial"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with file.open("a") if appends else partial.open("w") as opened:
                opened.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            if not appends:
                partial.replace(file)
        except OSError as error:
            if not self._has_complained:
                _log.warning("what experiments decide is not kept over a restart: %s", error)
                self._has_complained = True


def _read_json(file: Path) -> dict[str, Any]:
    """Returns an empty one where the file cannot be read."""
    try:
        data = _json(file.read_bytes())
    except OSError:
        return {}
    return data if isinstance(data, dict) else {}


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
    """The coordination of several gateways; its methods are those of `LocalCoordination`, and may raise StoreError.

    One gateway leads while it renews its lease; its fencing token is part of each write, so that a paused former leader
    changes nothing. All keys have one hash tag, so that a cluster stores them on one node. `tick`: the interval of
    reports; `lease`: how long leadership lasts without renewal; both in seconds. The caller owns the store.
    """

    def __init__(self, store: BoundedRedis, me: str, *, tick: float = 5.0, lease: float | None = None) -> None:
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
            values = {
                part.decode(errors="replace"): value
                for part, value in _pairs(await self._execute(("HGETALL", key))).items()
            }
        return {part: data for part, value in values.items() if (data := _json(value)) is not None}

    async def close(self) -> None:
        """Release the leadership."""
        with suppress(StoreError):
            await self._execute(_LEAVE.command([_LEADER, _REPORTS], [self.me]))

    async def _execute(self, *commands: Command) -> Any:
        """Returns: the reply to the first command."""
        refused = "Redis refuses what experiments keep"
        return (await self._store.run(*commands, timeout=_DEADLINE_SECONDS, refused=refused))[0]


Coordination = LocalCoordination | RedisCoordination


def _pairs(answer: Any) -> dict[bytes, bytes]:
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)  # evidence may be infinite
    except (ValueError, RecursionError):
        return None


def _states(data: dict[bytes, bytes]) -> dict[str, RunState]:
    read = {name.decode(errors="replace"): read_state(text.partition(b" ")[2]) for name, text in data.items()}
    return {name: state for name, state in read.items() if state is not None}


def _reports(data: dict[bytes, bytes], now: float, stale: float) -> dict[str, CountReport]:
    """The reports that are not stale."""
    values = {}
    for name, text in data.items():
        reported_at, _, report = text.partition(b" ")
        experiments = _json(report)
        with suppress(ValueError):
            age = now - float(reported_at)
            if age <= stale and isinstance(experiments, dict):
                values[name.decode()] = CountReport(max(0.0, age), experiments)
    return values
