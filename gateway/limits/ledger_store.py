"""Where a ledger outlives its process: Redis, which several gateways share, or a file of the data folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.limits.budget_window import AccountName, Spending, SpendingByBudget, WindowSpending
from gateway.limits.ledger import LedgerBatch, LedgerWindow
from gateway.redis.command import Command, Script

# KEYS: the totals of a budget, its accounts by the version of their last change. ARGV: start of the window, gateway,
# number of the batch, version, epoch, number of floors; floors, then changes: name, requests, tokens, spend of an
# account. Replies: the version, the epoch, and of each account with changes since the version that was named: name,
# requests, tokens, spend. -1: the window has ended; -2: there is another epoch, since Redis has lost the one that was
# named: then a gateway sends floors, which totals are raised to, and names none. The keys have no time to live, so that
# a Redis whose memory is full evicts others; each window replaces the last one.
EXCHANGE = Script(
    """
    local window = redis.call('HGET', KEYS[1], 'window')
    if window and tonumber(window) > tonumber(ARGV[1]) then return {-1} end
    if not window or tonumber(window) < tonumber(ARGV[1]) then
      redis.call('DEL', KEYS[1], KEYS[2])
      redis.call('HSET', KEYS[1], 'window', ARGV[1], 'epoch', ARGV[2] .. ':' .. ARGV[3])
    end
    local epoch = redis.call('HGET', KEYS[1], 'epoch')
    if ARGV[5] ~= '' and ARGV[5] ~= epoch then return {-2} end
    local since = tonumber(ARGV[4])
    local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
    if since > version then since = 0 end
    local batch = 'batch:' .. ARGV[2]
    if #ARGV > 6 and tonumber(redis.call('HGET', KEYS[1], batch) or '0') < tonumber(ARGV[3]) then
      version = redis.call('HINCRBY', KEYS[1], 'version', 1)
      local units, first = {'requests:', 'tokens:', 'spend:'}, 7 + 4 * tonumber(ARGV[6])
      for index = 7, first - 1, 4 do
        for place, unit in ipairs(units) do
          local total = redis.call('HGET', KEYS[1], unit .. ARGV[index])
          if tonumber(total or '0') <= tonumber(ARGV[index + place]) then
            redis.call('HSET', KEYS[1], unit .. ARGV[index], ARGV[index + place])
          end
        end
        redis.call('ZADD', KEYS[2], version, ARGV[index])
      end
      for index = first, #ARGV, 4 do
        local name = ARGV[index]
        redis.call('HINCRBY', KEYS[1], 'requests:' .. name, ARGV[index + 1])
        redis.call('HINCRBY', KEYS[1], 'tokens:' .. name, ARGV[index + 2])
        redis.call('HINCRBY', KEYS[1], 'spend:' .. name, ARGV[index + 3])
        redis.call('ZADD', KEYS[2], version, name)
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


class TotalsLostError(Exception):
    """The store has lost its totals, and has taken nothing."""


def exchange_command(id: str, gateway: str, batch: LedgerBatch, window: LedgerWindow) -> Command:
    """Store a batch of a budget, and read what has changed since the window's version; `gateway` names the process."""
    arguments: list[Any] = [batch.start, gateway, batch.number, window.version, window.epoch, len(window.floors)]
    for accounts in (window.floors, batch.changes):
        for name, (requests, tokens, spend) in accounts.items():
            arguments += [_encoded(name), requests, tokens, spend]
    return EXCHANGE.command([f"pointsman:1:budget:{{{id}}}", f"pointsman:1:budget:{{{id}}}:changes"], arguments)


def read_exchange(reply: list[Any]) -> tuple[str, int, dict[AccountName, Spending]] | None:
    """The epoch, the version and the totals; None where the window has ended.

    Raises: TotalsLostError.
    """
    if reply[0] == _LOST:
        raise TotalsLostError
    if reply[0] < 0:
        return None
    version, epoch, *rest = reply
    totals = {}
    for index in range(0, len(rest), 4):
        name, requests, tokens, spend = rest[index : index + 4]
        totals[_decoded(name)] = Spending(int(requests), int(tokens), int(spend))
    return epoch.decode() if isinstance(epoch, bytes) else epoch, version, totals


def _encoded(name: AccountName) -> str:
    return json.dumps(name, separators=(",", ":"))


def _decoded(name: str | bytes) -> AccountName:
    return tuple(json.loads(name))


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
