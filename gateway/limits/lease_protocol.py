"""The Redis scripts of limits, the commands that a worker sends for its accounts, and how it reads the replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.limits.account import Account
from gateway.limits.local_allowance import BorrowRequest, LocalAllowance
from gateway.redis.command import Command, Script

# A worker's slots expire after this time without renewal.
LEASE_SECONDS = 5.0
# A worker is no longer counted after this time without registration.
MEMBER_SECONDS = 6.0

# KEYS: a bucket. ARGV: tokens per second, size, wanted, least, returned. Replies: granted, milliseconds until `least`
# is available (0: now). A bucket expires when it would be full again, because a new one begins full.
BORROW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local rate, full = tonumber(ARGV[1]), tonumber(ARGV[2])
local want, least, back = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local kept = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = tonumber(kept[1]) or full
local since = tonumber(kept[2]) or now
level = math.max(-full, math.min(full, level + math.max(0, now - since) / 1000 * rate + back))
local granted, wait = 0, 0
if level >= least then
  granted = math.max(0, math.min(want, math.floor(level)))
  level = level - granted
end
if granted < want then
  wait = math.max(1, math.ceil((math.max(1, least) - level) / rate * 1000))
end
redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'at', string.format('%.3f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((full - level) / rate * 1000) + 10000)
return {tostring(granted), wait}
"""

# KEYS: the leases of one limit, by worker. ARGV: the worker, in use, wanted, the limit, lease in ms, sequence.
# Replies: how many the worker holds now. Slots in use are always granted: their requests are active.
HOLD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me, used, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limit, lease, sequence = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local others = 0
local leases = redis.call('HGETALL', KEYS[1])
for index = 1, #leases, 2 do
  local held, ends, number = string.match(leases[index + 1], '(%d+):(%d+):(%d+)')
  if leases[index] == me then
    if tonumber(number) > sequence then return tonumber(held) end
  elseif tonumber(ends) <= now then
    redis.call('HDEL', KEYS[1], leases[index])
  else
    others = others + tonumber(held)
  end
end
local held = math.max(used, math.min(want, limit - others))
redis.call('HSET', KEYS[1], me, string.format('%d:%.0f:%d', held, now + lease, sequence))
redis.call('PEXPIRE', KEYS[1], lease * 2)
return held
"""

# KEYS: the workers. ARGV: a worker, milliseconds until it expires (0: remove it). Replies: the number of workers.
COUNT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if tonumber(ARGV[2]) > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return redis.call('ZCARD', KEYS[1])
"""


_BORROW = Script(BORROW)
_HOLD = Script(HOLD)
_COUNT = Script(COUNT)
_MEMBERS = "pointsman:1:limits:members"


class LeaseRequest:
    """The commands of one account and the objects that their replies go to, which are those of the rules at the time of
    the request."""

    __slots__ = ("_allowances", "_slots", "_wanted", "account", "commands")

    def __init__(self, account: Account, me: str, now: float, *, is_idle: bool) -> None:
        self.account = account
        requests, tokens, self._wanted = account.borrow_request(now, is_idle=is_idle)
        self.commands: list[Command] = []
        self._allowances: list[LocalAllowance] = []
        key = account.key
        for name, allowance, borrow in (("requests", account.requests, requests), ("tokens", account.tokens, tokens)):
            if allowance is not None and borrow is not None and (borrow.want or borrow.back):
                self.commands.append(_borrow(f"{key}:{name}", allowance, borrow))
                self._allowances.append(allowance)
        self._slots = slots = account.slots
        if slots is not None:
            lease = int(LEASE_SECONDS * 1000)
            arguments = [me, slots.in_use, self._wanted, slots.limit, lease, slots.sequence]
            self.commands.append(_HOLD.command([f"{key}:slots"], arguments))

    def answered(self, answers: Iterator[Any], now: float) -> bool:
        """Apply the replies. Returns whether Redis answered all commands (it refuses some when its memory is full)."""
        is_complete = True
        for allowance in self._allowances:
            answer = next(answers)
            if isinstance(answer, Exception):
                is_complete = False
            else:
                allowance.granted(float(answer[0]), float(answer[1]) / 1000, now)
        if self._slots is not None:
            answer = next(answers)
            if isinstance(answer, Exception):
                is_complete = False
            else:
                self._slots.granted(int(answer), self._wanted, now)
        return is_complete


def _borrow(key: str, allowance: LocalAllowance, borrow: BorrowRequest) -> Command:
    return _BORROW.command([key], [repr(allowance.rate), repr(allowance.full), borrow.want, borrow.least, borrow.back])


def register(me: str) -> Command:
    """Register this worker; the reply is the number of workers."""
    return _COUNT.command([_MEMBERS], [me, int(MEMBER_SECONDS * 1000)])


def leave(me: str) -> Command:
    """Deregister this worker."""
    return _COUNT.command([_MEMBERS], [me, 0])
