"""Where a ledger outlives its process: Redis, which several gateways share, or a file of the data folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gateway.limits.budget_window import AccountName, Spending, SpendingByBudget, WindowSpending
from gateway.limits.ledger import LedgerBatch, LedgerWindow
from gateway.protocol.stored_json import read_json_texts
from gateway.redis.command import Command, Script

# KEYS: the totals of a budget, its accounts by the version of their last change. ARGV: start of the window, gateway,
# number of the batch, version, epoch, number of floors; floors, then changes: name, requests, tokens, spend of an
# account. Replies: the version, the epoch, and of each account with changes since the version that was named: name,
# requests, tokens, spend; a total that is no number starts over. -1: the window has ended; -2: there is another epoch,
# since Redis has lost the one that was named: then a gateway sends floors, which totals are raised to, and names none.
# The keys have no time to live, so that a Redis whose memory is full evicts others; each window replaces the last one.
EXCHANGE = Script(
    """
    local function number(field) return tonumber(redis.call('HGET', KEYS[1], field) or '') end
    local window = number('window')
    if window and window > tonumber(ARGV[1]) then return {-1} end
    local epoch = redis.call('HGET', KEYS[1], 'epoch')
    if not window or not epoch or window < tonumber(ARGV[1]) then
      redis.call('DEL', KEYS[1], KEYS[2])
      epoch = ARGV[2] .. ':' .. ARGV[3]
      redis.call('HSET', KEYS[1], 'window', ARGV[1], 'epoch', epoch)
    end
    if ARGV[5] ~= '' and ARGV[5] ~= epoch then return {-2} end
    local since = tonumber(ARGV[4])
    local version = number('version') or 0
    if since > version then since = 0 end
    local batch = 'batch:' .. ARGV[2]
    if #ARGV > 6 and (number(batch) or 0) < tonumber(ARGV[3]) then
      version = version + 1
      redis.call('HSET', KEYS[1], 'version', string.format('%d', version))
      local units, first = {'requests:', 'tokens:', 'spend:'}, 7 + 4 * tonumber(ARGV[6])
      for index = 7, first - 1, 4 do
        for place, unit in ipairs(units) do
          if (number(unit .. ARGV[index]) or 0) <= tonumber(ARGV[index + place]) then
            redis.call('HSET', KEYS[1], unit .. ARGV[index], ARGV[index + place])
          end
        end
        redis.call('ZADD', KEYS[2], version, ARGV[index])
      end
      for index = first, #ARGV, 4 do
        for place, unit in ipairs(units) do
          local field = unit .. ARGV[index]
          local sum = redis.pcall('HINCRBY', KEYS[1], field, ARGV[index + place])
          if type(sum) == 'table' and sum.err then redis.call('HSET', KEYS[1], field, ARGV[index + place]) end
        end
        redis.call('ZADD', KEYS[2], version, ARGV[index])
      end
      redis.call('HSET', KEYS[1], batch, ARGV[3])
    end
    local reply = {version, epoch}
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. since, '+inf')) do
      local total = redis.call('HMGET', KEYS[1], 'requests:' .. name, 'tokens:' .. name, 'spend:' .. name)
      reply[#reply + 1] = name
      reply[#reply + 1] = total[1]
      reply[#reply + 1] = total[2]
      reply[#reply + 1] = total[3]
    end
    return reply
    """
)


_LOST = -2
_MAX_SUM = 2**62  # Redis adds in 64 bits


class TotalsLostError(Exception):
    """The store has lost its totals, and has taken nothing."""


def exchange_command(id: str, gateway: str, batch: LedgerBatch, window: LedgerWindow) -> Command:
    """Store a batch of a budget, and read what has changed since the window's version; `gateway` names the process."""
    arguments: list[Any] = [batch.start, gateway, batch.number, window.version, window.epoch, len(window.floors)]
    for accounts in (window.floors, batch.changes):
        for name, (requests, tokens, spend) in accounts.items():
            arguments += [_encoded(name), requests, tokens, spend]
    return EXCHANGE.command([f"pointsman:1:budget:{{{id}}}", f"pointsman:1:budget:{{{id}}}:changes"], arguments)


class LedgerExchange(NamedTuple):
    """What the store says; `malformed` are members that are no accounts, which count for nothing."""

    epoch: str
    version: int
    totals: dict[AccountName, Spending]
    malformed: list[bytes | str]


def read_exchange(reply: list[Any]) -> LedgerExchange | None:
    """What the store says; None where the window has ended.

    Raises: TotalsLostError.
    """
    if reply[0] == _LOST:
        raise TotalsLostError
    if reply[0] < 0:
        return None
    version, epoch, *rest = reply
    found = LedgerExchange(epoch.decode(errors="replace") if isinstance(epoch, bytes) else epoch, version, {}, [])
    for index in range(0, len(rest), 4):
        name, *spent = rest[index : index + 4]
        try:
            found.totals[read_json_texts(name)] = Spending(*map(_sum_of, spent))
        except ValueError:
            found.malformed.append(name)
    return found


def _sum_of(text: bytes | str | None) -> int:
    """Raises: ValueError."""
    if text is None or not -_MAX_SUM <= (found := int(text)) <= _MAX_SUM:
        raise ValueError("it is no sum")
    return found


def _encoded(name: AccountName) -> str:
    return json.dumps(name, separators=(",", ":"))


class LedgerFile:
    """`budgets.json` of a folder; one process has it, others that name the folder write none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "budgets.json"
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"<LedgerFile {self._path}>"

    def open(self) -> dict[str, WindowSpending]:
        """Lock the file and read it; without a file nothing is spent.

        Raises: OSError where another process has it, or it cannot be read; ValueError where it is damaged.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        try:
            written = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        try:
            return {id: _read_window(window) for id, window in written.items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} is not a file of budgets") from error

    def write(self, totals: SpendingByBudget) -> None:
        """Replace the file.

        Raises: OSError.
        """
        text = json.dumps({id: _window_json(window) for id, window in totals.items()})
        partial = self._path.with_suffix(".partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _window_json(window: WindowSpending) -> Mapping[str, Any]:
    return {"start": window.start, "accounts": [[name, *spent] for name, spent in window.accounts.items()]}


def _read_window(written: Mapping[str, Any]) -> WindowSpending:
    accounts = {tuple(name): Spending(*map(int, spent)) for name, *spent in written["accounts"]}
    return WindowSpending(int(written["start"]), accounts)
