"""Declarations of `overload:` of engines and of `classes:`: created by `config.engines` and `config.overload`,
immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from gateway.config.value_parsers import Count, Glob, Name, PositiveCount, PositiveDuration, Ratio, Text
from gateway.yaml import values
from gateway.yaml.problems import Location


@dataclass(frozen=True, slots=True)
class ConcurrencySpec:
    """How many requests an endpoint gets at a time, per worker: a limit that follows the latency of its replies."""

    min: PositiveCount = 3  # never fewer; the latency of an unloaded endpoint is measured with so many
    max: PositiveCount = 1000  # never more
    initial: PositiveCount = 20  # before anything is measured, within `min` and `max`
    tolerance: Ratio = 1.2  # the median latency that is allowed, as a multiple of the unloaded one
    samples: Annotated[int, values.between(5, 1000, values.integer)] = 25  # replies of one measurement
    remeasure: PositiveDuration = 60.0  # the age from which the unloaded latency is measured again


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The requests that wait for an endpoint, per worker."""

    max_requests: Count = 1000  # 0: none waits
    max_wait: PositiveDuration = 1.0  # longer ones are refused
    # A tenant's queue that is never below this wait for an `interval` is served last in, first out
    target: PositiveDuration = 0.1
    interval: PositiveDuration = 0.5  # see `target`


@dataclass(frozen=True, slots=True)
class OverloadSpec:
    """`overload:` of an engine: what happens to requests beyond what its endpoints can do."""

    concurrency: ConcurrencySpec = ConcurrencySpec()
    queue: QueueSpec = QueueSpec()


@dataclass(frozen=True, slots=True)
class PriorityClassSpec:
    """An entry of `classes:`, which lists the highest first.

    A caller has the first class that names it; others have the first class that names nobody, or else the last one.
    A request may ask for a lower class than its caller's, never for a higher one.
    """

    name: Name  # that requests and metrics have
    tenant: tuple[Glob, ...] = ()  # case-sensitive
    key: tuple[Glob, ...] = ()  # as `allow` of routes has them
    # Shares of tenants that wait in the same class; 1 where a tenant is not named
    weights: Mapping[Text, Annotated[int, values.between(1, 1000, values.integer)]] = field(default_factory=dict)
    location: Location | None = field(default=None, compare=False)

    @property
    def names_callers(self) -> bool:
        return bool(self.tenant or self.key)
