"""Counts of an experiment's arms, as plain values: the input of statistics.

Units (sessions, users) fall by a hash into `NUM_BUCKETS` buckets, the same in every worker and gateway: all requests of
a unit count in one. Buckets are independent of each other, while the requests of a unit are not: the variance between
the buckets is that of the statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log

NUM_BUCKETS = 64

# Latencies are counted in bins whose bounds are 5 % apart, from 10 microseconds on.
_BIN = 0.05
FIRST_SECONDS = 1e-5
LAST_BIN = 400  # about an hour and a quarter


def bin_of(seconds: float) -> int:
    """The bin of a latency: bin b holds what is above `bin_bound(b - 1)` and at most `bin_bound(b)`."""
    if seconds <= FIRST_SECONDS:
        return 0
    return min(int(log(seconds / FIRST_SECONDS) / _BIN) + 1, LAST_BIN)


def bin_bound(number: int) -> float:
    """The upper bound of a bin, in seconds."""
    return FIRST_SECONDS * exp(_BIN * number)


def _ints() -> list[int]:
    return [0] * NUM_BUCKETS


def _floats() -> list[float]:
    return [0.0] * NUM_BUCKETS


@dataclass(slots=True)
class LatencyStats:
    """One kind of latency: sums by bucket, and counts by bin."""

    count: list[int] = field(default_factory=_ints)
    seconds: list[float] = field(default_factory=_floats)
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, bucket: int, seconds: float) -> None:
        """Count a latency of a unit in this bucket."""
        self.count[bucket] += 1
        self.seconds[bucket] += seconds
        number = bin_of(seconds)
        self.bins[number] = self.bins.get(number, 0) + 1


@dataclass(slots=True)
class Feedback:
    """Feedback of one name: its values, by bucket, and its labels."""

    count: list[int] = field(default_factory=_ints)  # of values
    total: list[float] = field(default_factory=_floats)
    squares: float = 0.0
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArmKey:
    experiment: str
    arm: str


@dataclass(slots=True)
class ArmCounts:
    """All counts of one arm. Only inferences count, and only where the arm was drawn: forced requests, and units that
    the experiment does not have, do not.

    Lists have a number for each bucket. `latency` is of successful requests, from the head to the end of the reply;
    `first_token` and `per_token` are of streamed generations.
    """

    key: ArmKey
    requests: list[int] = field(default_factory=_ints)
    errors: list[int] = field(default_factory=_ints)  # 5xx, gRPC's equivalents, and replies that broke off
    kinds: dict[str, int] = field(default_factory=dict)  # of errors, by reason or status
    request_bytes: list[float] = field(default_factory=_floats)  # the covariate
    latency: LatencyStats = field(default_factory=LatencyStats)
    first_token: LatencyStats = field(default_factory=LatencyStats)
    per_token: LatencyStats = field(default_factory=LatencyStats)
    prompt_tokens: list[int] = field(default_factory=_ints)
    output_tokens: list[int] = field(default_factory=_ints)
    generations: list[int] = field(default_factory=_ints)  # requests whose tokens were counted
    feedback: dict[str, Feedback] = field(default_factory=dict)  # by name
    units: list[int] = field(default_factory=_ints)  # first exposures: of new sessions
    crossed: int = 0  # requests that another arm's engine answered, by failover: not counted above
    forced: int = 0  # requests with a forced arm: not counted above
    # Of sessions whose arm was guessed, since Redis had not said whether they had one: not counted above
    guessed: int = 0  # requests
    guessed_errors: int = 0  # those that failed, for the fuse alone
    guessed_units: int = 0  # sessions
    joules: float = 0.0  # energy, where engines report it
    joules_requests: int = 0  # requests for which they report it
