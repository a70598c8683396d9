"""What one worker knows of the allowance that one limit gives to one of those whom it tells apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gateway.config.specs import LimitSpec
from gateway.limits.limit_key import Who, digest, shown
from gateway.limits.local_allowance import ASK_AGAIN_SECONDS, Ask, Say, Slack, Slots

_A_MINUTE = 60.0
# Rounding must not make a turn of nothing.
_LEAST_TURN_SECONDS = 0.001


class QueuedRequest(Protocol):
    """A request that waits for a grant."""

    tokens: int | None  # that it may use; None where no limit counts them

    def answered(self, *, is_late: bool) -> None:
        """One of its accounts has its answer, or gets none."""
        ...


@dataclass(slots=True)
class Counts:
    """What has happened since the start."""

    admitted: int = 0
    refused: int = 0
    waited: int = 0  # of both, for an answer of Redis


class Account:
    """Requests, tokens and slots of one, each None where the limit does not limit it.

    A request takes of all at once or of none.
    """

    __slots__ = (
        "counts",
        "grant",
        "is_asking",
        "num_queued",
        "requests",
        "slots",
        "spec",
        "tokens",
        "under_way",
        "used_at",
        "waiting",
        "who",
    )

    def __init__(self, spec: LimitSpec, who: Who, num_workers: int, now: float, counts: Counts) -> None:
        """`counts` are those of the limit."""
        self.spec = spec
        self.counts = counts
        self.who = who
        self.requests = (
            Slack(spec.requests_per_second, spec.full, num_workers, now) if spec.requests_per_second else None
        )
        per_minute = spec.tokens_per_minute
        self.tokens = Slack(per_minute / _A_MINUTE, float(per_minute), num_workers, now) if per_minute else None
        self.slots = Slots(spec.concurrency, num_workers) if spec.concurrency else None
        self.under_way = 0  # requests, whether they need slots or will by other rules
        self.used_at = now
        self.waiting: list[QueuedRequest] = []
        self.num_queued = 0  # requests that wait for their turn, with nobody asked
        self.is_asking = False
        self.grant: Any = None  # the one of all requests that are under no other limit, and count no tokens

    def __repr__(self) -> str:
        held = ", ".join(repr(part) for part in (self.requests, self.tokens, self.slots) if part is not None)
        return f"<Account of {self.spec.name}: {held}>"

    @property
    def shown(self) -> str:
        return shown(self.spec, self.who)

    @property
    def key(self) -> str:
        """What its keys in Redis begin with; what is in braces keeps them together in a cluster."""
        return f"pointsman:1:limit:{{{self.spec.name}:{digest(self.spec, self.who)}}}"

    @property
    def is_in_use(self) -> bool:
        """Whether requests are under way or wait by it."""
        return (
            bool(self.waiting)
            or self.is_asking
            or self.num_queued > 0
            or (self.slots is not None and self.slots.in_use > 0)
        )

    @property
    def holds(self) -> bool:
        """Whether it has anything that others could use."""
        slacks = (self.requests, self.tokens)
        return any(slack is not None and slack.allowance != 0 for slack in slacks) or (
            self.slots is not None and self.slots.held > 0
        )

    def say(self, tokens: int, now: float, is_shared: bool) -> Say:
        """Whether a request that may use so many tokens may go."""
        said = Say.YES
        if self.requests is not None:
            said = self.requests.say(1.0, now, is_shared)
            if said is Say.NO:
                return said
        if self.tokens is not None and tokens:
            of_tokens = self.tokens.say(min(tokens, self.tokens.full), now, is_shared)
            if of_tokens is Say.NO:
                return of_tokens
            if of_tokens is Say.ASK:
                said = of_tokens
        if self.slots is not None:
            of_slots = self.slots.say(now, is_shared)
            if of_slots is not Say.YES:
                return of_slots
        return said

    def has_at_hand(self) -> bool:
        """Whether a request may go with nobody asked, where Redis decides; never where tokens are counted."""
        requests, slots = self.requests, self.slots
        return (
            self.tokens is None
            and (requests is None or requests.allowance >= 1.0)
            and (slots is None or slots.in_use < slots.held)
        )

    def take_at_hand(self, now: float) -> bool:
        """Let a request go so; tells whether it is time to ask for more."""
        requests, slots = self.requests, self.slots
        self.counts.admitted += 1
        self.used_at = now
        self.under_way += 1
        if slots is not None:
            slots.in_use += 1
        if requests is None:
            return False
        # As `Slack.take` does, without the price of a call.
        requests.demand += 1.0
        requests.allowance = allowance = requests.allowance - 1.0
        return allowance < requests.low

    def take(self, tokens: int, now: float, is_shared: bool) -> bool:
        """Let a request go that may; tells whether it is time to ask for more."""
        self.counts.admitted += 1
        self.used_at = now
        is_low = self.requests is not None and self.requests.take(1.0, now, is_shared)
        if self.tokens is not None and tokens:
            is_low = self.tokens.take(tokens, now, is_shared) or is_low
        self.enter()
        return is_low

    def enter(self) -> None:
        """One more request is under way."""
        self.under_way += 1
        if self.slots is not None:
            self.slots.in_use += 1

    def leave(self) -> None:
        """One of them is over."""
        self.under_way -= 1
        if self.slots is not None:
            self.slots.in_use -= 1

    def turn_in(self, tokens: int, now: float, is_shared: bool) -> float:
        """Seconds after which it is worth to ask again for a request that may not go."""
        wait = 0.0
        for slack, amount in ((self.requests, 1.0), (self.tokens, float(tokens))):
            if slack is not None and not slack.has(min(amount, slack.full), now, is_shared):
                wait = max(wait, slack.wait(amount, now, is_shared))
        if self.slots is not None and self.slots.say(now, is_shared) is not Say.YES:
            wait = max(wait, ASK_AGAIN_SECONDS)  # nobody knows when a request will end
        return max(wait, _LEAST_TURN_SECONDS)

    # With Redis

    def ask(self, now: float, *, is_idle: bool) -> tuple[Ask | None, Ask | None, int]:
        """What to ask for: requests, tokens, slots to hold; None, or 0, where the limit does not limit it."""
        waiting = [pending.tokens or 0 for pending in self.waiting]
        requests = self.requests.ask([1.0] * len(waiting), now, is_idle) if self.requests is not None else None
        tokens = None
        if self.tokens is not None:
            amounts = [min(float(amount), self.tokens.full) for amount in waiting if amount]
            tokens = self.tokens.ask(amounts, now, is_idle)
        slots = self.slots.ask(len(waiting), is_idle=is_idle) if self.slots is not None else 0
        return requests, tokens, slots

    def resize(self, num_workers: int, now: float) -> None:
        """So many workers share from now on."""
        for slack in (self.requests, self.tokens):
            if slack is not None:
                slack.resize(num_workers, now)
        if self.slots is not None:
            self.slots.resize(num_workers)

    def use(self, spec: LimitSpec, num_workers: int, now: float) -> None:
        """Go on by another limit of the same name. What is borrowed of the old one is forgotten, who is under way keeps
        the slot that he has, or takes one."""
        fresh = Account(spec, self.who, num_workers, now, self.counts)
        if fresh.slots is not None:
            fresh.slots.in_use = self.under_way
        self.spec, self.requests, self.tokens, self.slots = spec, fresh.requests, fresh.tokens, fresh.slots
        self.grant = None
