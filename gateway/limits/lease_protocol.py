"""What a worker says to Redis for its accounts, and how it reads the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.limits.account import Account
from gateway.limits.local_allowance import Ask, Slack
from gateway.redis.script import Command, Script

# How long a worker's slots are its own without a word from it.
LEASE_SECONDS = 5.0
# How long a worker is counted without a word from it.
MEMBER_SECONDS = 6.0

# KEYS: a bucket. ARGV: tokens a second, size, wanted, least, put back. Answers: granted, milliseconds until there is
# what was wanted at least (0: now). A bucket that would be full again is forgotten, since it begins full.
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
# Answers: how many the worker holds now. What is in use is always granted: it is under way.
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

# KEYS: the workers. ARGV: a worker, milliseconds it is counted (0: it leaves). Answers: how many there are.
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


class Inquiry:
    """The commands of one account, and what becomes of their answers: these are of the rules that asked, whichever hold
    by then."""

    __slots__ = ("_slacks", "_slots", "_wanted", "account", "commands")

    def __init__(self, account: Account, me: str, now: float, *, is_idle: bool) -> None:
        self.account = account
        requests, tokens, self._wanted = account.ask(now, is_idle=is_idle)
        self.commands: list[Command] = []
        self._slacks: list[Slack] = []
        key = account.key
        for name, slack, ask in (("requests", account.requests, requests), ("tokens", account.tokens, tokens)):
            if slack is not None and ask is not None and (ask.want or ask.back):
                self.commands.append(_borrow(f"{key}:{name}", slack, ask))
                self._slacks.append(slack)
        self._slots = slots = account.slots
        if slots is not None:
            lease = int(LEASE_SECONDS * 1000)
            told = [me, slots.in_use, self._wanted, slots.limit, lease, slots.sequence]
            self.commands.append(_HOLD.command([f"{key}:slots"], told))

    def __repr__(self) -> str:
        return f"<Inquiry of {self.account!r}: {len(self.commands)} commands>"

    def answered(self, answers: Iterator[Any], now: float) -> bool:
        """Take over what Redis says; tells whether it has refused nothing (it does where its memory is full)."""
        is_said = True
        for slack in self._slacks:
            answer = next(answers)
            if isinstance(answer, Exception):
                is_said = False
            else:
                slack.told(float(answer[0]), float(answer[1]) / 1000, now)
        if self._slots is not None:
            answer = next(answers)
            if isinstance(answer, Exception):
                is_said = False
            else:
                self._slots.told(int(answer), self._wanted, now)
        return is_said


def _borrow(key: str, slack: Slack, ask: Ask) -> Command:
    return _BORROW.command([key], [repr(slack.rate), repr(slack.full), ask.want, ask.least, ask.back])


def count_me(me: str) -> Command:
    """Be counted among the workers; the answer is how many there are."""
    return _COUNT.command([_MEMBERS], [me, int(MEMBER_SECONDS * 1000)])


def leave(me: str) -> Command:
    """Be counted no more."""
    return _COUNT.command([_MEMBERS], [me, 0])
