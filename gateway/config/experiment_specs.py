"""Declarations of experiments in rule files: arms, layers, ramps, guardrails, shadows. Created by `config`.

Times are seconds (float), shares are fractions of 1 (float). Each field documents its meaning, unit and default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from gateway.config import value_parsers
from gateway.config.fallback_specs import FallbackSpec
from gateway.config.value_parsers import (
    Duration,
    EngineName,
    HeaderName,
    LayerName,
    Metric,
    Name,
    Part,
    PositiveCount,
    PositiveDuration,
    Share,
    Text,
    Unit,
    UnitShare,
)
from gateway.yaml import values
from gateway.yaml.problems import Location


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One side of an experiment."""

    name: Name  # in replies, metrics and logs
    engine: EngineName  # where its units go
    weight: Annotated[float, value_parsers.weight]  # its share, relative to the other arms; 0: none
    model: Text | None = None  # the model's name there; None: the route's
    fallback: tuple[FallbackSpec, ...] = ()  # empty: the route's


@dataclass(frozen=True, slots=True)
class GuardrailSpec:
    """A bound on harm by an arm, compared with the control in the same period; exactly one of the bounds is set.

    `metric`: error_rate; latency, first_token, per_token (means, or quantiles with _p50, _p90, _p95, _p99; seconds);
    output_tokens; feedback:NAME (the mean of a value that clients send).
    """

    metric: Metric  # what is bounded; see above
    max: float | None = None  # of the arm itself: a share, seconds, or the value
    max_increase: float | None = None  # over the control's: 0.01 is one more error in a hundred requests
    max_decrease: float | None = None  # under the control's
    max_ratio: float | None = None  # of the control's: 1.2 is a fifth more
    min_ratio: float | None = None  # of the control's: 0.9 is a tenth less
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class FuseSpec:
    """When an arm has collapsed: no statistics are waited for."""

    error_rate: Part = 0.5  # of the arm's requests since the step began or in the last `window`, whichever is worse
    min_requests: PositiveCount = 20  # fewer say nothing
    window: PositiveDuration = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class RampSpec:
    """One arm's share grows by steps, as long as it does no harm."""

    steps: tuple[float, ...]  # shares of the experiment's units, growing
    arm: Name = ""  # the growing arm; the control has the rest. Empty in a file: the only other one
    min_requests: PositiveCount = 200  # of that arm in a step, before the next one: fewer show next to nothing
    min_time: Duration = 60.0  # seconds in a step, before the next one
    auto_start: bool = False  # at once when the rules are activated; else an operator starts it
    fuse: FuseSpec = FuseSpec()
    # What a step needs of each guardrail before the next one: known, that it is kept; unbreached, that it is not
    # breached, so that more traffic can decide it. Whoever writes a guardrail expects it to have said something.
    # Not in a repr: a change of it ends no run
    require: Literal["known", "unbreached"] = field(default="known", repr=False)
    location: Location | None = field(default=None, compare=False, repr=False)  # of `min_requests`, if it is there


@dataclass(frozen=True, slots=True)
class BanditSpec:
    """Thompson sampling: arms get traffic by the chance that they are the best."""

    metric: Annotated[str, value_parsers.binary_metric] = "error_rate"  # error_rate, or feedback:NAME (of 0 and 1)
    min_share: Share = 0.05  # of each arm: one that gets nothing can never show that it has improved
    max_share: Part = 0.95  # of one arm
    every: PositiveDuration = 30.0  # seconds between changes of weights
    half_life: PositiveDuration = 3600.0  # seconds after which evidence counts half, because engines change
    fuse: FuseSpec = field(default=FuseSpec(), repr=False)  # of each arm but the control; a change ends no run


@dataclass(frozen=True, slots=True)
class ExperimentSpec:
    """A split of traffic: each unit keeps its arm."""

    name: str
    arms: tuple[ArmSpec, ...]
    unit: Unit = "session"  # session | request | header:NAME | parameter:NAME
    salt: Text = ""  # changes the assignment; empty: the experiment's name
    control: Name = ""  # the arm that others are compared with, and that has all units of no other; empty: the first
    layer: LayerName | None = None  # experiments of one layer share no unit
    share: UnitShare = 1.0  # of the layer's units, or of all; the others get the control arm and are not counted
    metric: Metric = "error_rate"  # what decides which arm is better; see GuardrailSpec
    goal: Literal["lower", "higher"] = "lower"  # which values of `metric` are better
    alpha: Annotated[float, value_parsers.alpha] = 0.05  # the chance of a wrong verdict, however often one looks
    guardrails: tuple[GuardrailSpec, ...] = ()
    # Whether clients are told the arm of their session, signed, and may show it where Redis does not answer: in a
    # cookie, in a header, in gRPC's metadata; redis: only Redis knows it
    pin: Literal["client", "redis"] = "client"
    # How long the first request of a session waits for its arm in Redis: a wrong one spoils the user's experience and
    # the result, which is worth ten times the wait for a place (--redis-deadline, 5 ms)
    lookup_timeout: Duration = 0.05
    ramp: RampSpec | None = None
    bandit: BanditSpec | None = None
    location: Location | None = None

    @property
    def is_by_session(self) -> bool:
        return self.unit == "session"

    @property
    def control_arm(self) -> ArmSpec:
        return next((arm for arm in self.arms if arm.name == self.control), self.arms[0])


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Experiments that exclude each other: a unit is in one of them at most."""

    name: str
    unit: Unit = "session"  # that of all its experiments
    # Share of units that no experiment gets: what all of them together have changed shows there
    holdout: UnitShare = 0.0
    salt: Text = ""  # empty: the layer's name
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class ForcingSpec:
    """Who may choose an arm for a request of theirs: `header: EXPERIMENT=ARM` with one of the keys, also as gRPC's
    metadata, or `parameter` of the body. Such requests are not counted in the experiment."""

    header: HeaderName = "x-pointsman-force"  # has the experiment and the arm
    key_header: HeaderName = "x-pointsman-force-key"  # has the key
    # SHA-256 of each key, in hexadecimal; without keys no request may choose
    keys: tuple[Annotated[str, value_parsers.hashed_key], ...] = field(default=(), repr=False)
    parameter: Text | None = None  # looked for in bodies, too: it costs each request of an experiment, so none
    key_parameter: Text = "pointsman_force_key"  # has the key, beside `parameter`


@dataclass(frozen=True, slots=True)
class ToleranceSpec:
    """How far two engines' answers may differ and still agree."""

    absolute: Annotated[float, value_parsers.deviation] = 1e-3  # between two numbers
    relative: Annotated[float, value_parsers.relative_deviation] = 1e-2  # of the larger one; either bound is enough


@dataclass(frozen=True, slots=True)
class ShadowSpec:
    """A route's requests are also sent to a second engine, whose replies only the shadow report uses."""

    engine: EngineName  # that gets the copies
    model: Text | None = None  # None: the model name of the route's own engine
    sample: Annotated[float, value_parsers.sample] = 0.01  # of requests
    max_in_flight: PositiveCount = 4  # concurrent copies; more are counted, not sent
    # Of a request or an answer; longer ones are not mirrored, but counted. Below 1 KiB not even a head fits.
    max_bytes: Annotated[int, values.between(1024, 256 * 1024 * 1024, values.size)] = 4 * 1024 * 1024
    timeout: PositiveDuration = 60.0  # of a copy
    top_k: PositiveCount = 5  # of the last axis, compared as sets
    # Characters of users' texts that reports show; a report has twenty of them in memory
    excerpts: Annotated[int, values.between(0, 2000, values.integer)] = 0
    tolerance: ToleranceSpec = ToleranceSpec()
    location: Location | None = field(default=None, compare=False)
