"""What a worker says to Redis for its accounts, and how it reads the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.limits.account import Account
from gateway.limits.local_allowance import Ask, Slack
from gateway.limits.redis_scripts import BORROW, COUNT, HOLD, LEASE_SECONDS, MEMBER_SECONDS
from gateway.redis.script import Command, Script

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
