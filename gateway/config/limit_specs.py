"""Limits, budgets and prices as rules declare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from gateway.config import value_parsers
from gateway.config.value_parsers import Duration, LimitKeyName, Name, PositiveCount, RouteName, Text
from gateway.yaml import values
from gateway.yaml.problems import Location


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """A limit on requests, shared by all workers of all gateways of one Redis.

    Each combination of the values of `per` has its own allowance; requests without a value (no tenant, no key) share
    one. Only inferences count.
    """

    name: Name  # in metrics and replies; each once
    routes: tuple[RouteName, ...] = ()  # the routes whose requests count; empty: all
    per: tuple[LimitKeyName, ...] = ()  # route | tenant | key | session | header:NAME; empty: one allowance for all
    requests_per_second: Annotated[float, values.above_zero(values.number)] | None = None  # on average
    # Requests at once after a pause; None: as many as a second brings, and at least 1
    burst: PositiveCount | None = None
    tokens_per_minute: PositiveCount | None = None  # prompts and completions; a minute's worth at once
    concurrency: PositiveCount | None = None  # requests at the same time
    max_wait: Duration = 0.0  # seconds that a request may wait for its turn; 0: refuse at once
    location: Location | None = field(default=None, compare=False)

    @property
    def full(self) -> float:
        """Requests at once after a pause."""
        return float(self.burst) if self.burst is not None else max(1.0, self.requests_per_second or 0.0)

    @property
    def text(self) -> str:
        """The limit in words."""
        amounts = []
        if self.requests_per_second is not None:
            amounts.append(f"{self.requests_per_second:g} requests per second")
        if self.tokens_per_minute is not None:
            amounts.append(f"{self.tokens_per_minute} tokens per minute")
        if self.concurrency is not None:
            amounts.append(f"{self.concurrency} requests at the same time")
        return ", ".join(amounts) + (f" for each {' and '.join(self.per)}" if self.per else "")


class BudgetWindow(Enum):
    """A calendar window in UTC, after which a budget starts over; a week begins on Monday."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


# Billionths of it must fit the 64 bits of a counter in Redis.
_MAX_SPEND = 1e9

Spend = Annotated[float, values.between(1e-9, _MAX_SPEND, values.number)]
Price = Annotated[float, values.between(0.0, 1e6, values.number)]


@dataclass(frozen=True, slots=True)
class BudgetAmounts:
    """What one window allows; None: without bound."""

    requests: PositiveCount | None = None  # in the window
    tokens: PositiveCount | None = None  # prompts and completions
    spend: Spend | None = None  # in the currency of `prices`

    @property
    def text(self) -> str:
        """The amounts in words."""
        shown = (f"{value:g} {name}" for name in AMOUNT_NAMES if (value := getattr(self, name)) is not None)
        return ", ".join(shown)


AMOUNT_NAMES = ("requests", "tokens", "spend")


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """What each key or tenant may use in a calendar window, counted by all gateways of one Redis together.

    Each combination of the values of `per` has its own account, as of limits. Only inferences count.
    """

    name: Name  # in metrics and replies; each once
    window: BudgetWindow  # after which it starts over, in UTC
    routes: tuple[RouteName, ...] = ()  # the routes whose requests count; empty: all
    per: tuple[LimitKeyName, ...] = ()  # route | tenant | key | session | header:NAME; empty: one account for all
    requests: PositiveCount | None = None  # in the window
    tokens: PositiveCount | None = None  # in the window: prompts and completions
    spend: Spend | None = None  # in the window, in the currency of `prices`
    # Amounts of single tenants or keys; what one leaves out is as for all others
    overrides: Mapping[Text, BudgetAmounts] = field(default_factory=dict)
    location: Location | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """What accounts are stored under: a budget with another window or other keys starts empty."""
        return f"{self.window.value}:{self.name}:{','.join(self.per)}"

    @property
    def text(self) -> str:
        """The budget in words."""
        per = f" for each {' and '.join(self.per)}" if self.per else ""
        return f"{self.amounts().text or 'overrides'} a {self.window.value}{per}"

    def amounts(self, account: tuple[str, ...] = ()) -> BudgetAmounts:
        """What an account may use."""
        own = self.overrides.get(account[0]) if len(account) == 1 else None
        if own is None:
            return BudgetAmounts(self.requests, self.tokens, self.spend)
        return BudgetAmounts(
            own.requests or self.requests, own.tokens or self.tokens, self.spend if own.spend is None else own.spend
        )


@dataclass(frozen=True, slots=True)
class PriceSpec:
    """What the use of some models costs, in the operator's currency."""

    models: tuple[Annotated[str, value_parsers.text_glob], ...]  # the first price with a matching one counts
    input: Price = 0.0  # for a million tokens of prompts
    output: Price = 0.0  # for a million generated tokens
    cached: Price | None = None  # for a million tokens of prompts in the engine's cache; None: as `input`
    request: Price = 0.0  # for each request
    location: Location | None = field(default=None, compare=False)
