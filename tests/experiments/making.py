"""Experiments, counts and gateways for tests: a workforce that serves requests by the shares that it was given."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.experiment_specs import ArmSpec, BanditSpec, ExperimentSpec, FuseSpec, GuardrailSpec, RampSpec
from gateway.config.specs import RulesSpec
from gateway.experiments.controller import GatewayActions, RulesNotWritten
from gateway.experiments.runs import Shares, weights_of
from gateway.observability.arm_stats import NUM_BUCKETS, ArmCounts, ArmKey, bin_of
from gateway.statistics.metrics import add

ARMS = (ArmSpec("old", "a", 90.0), ArmSpec("new", "b", 10.0))
GUARDRAILS = (GuardrailSpec("error_rate", max_increase=0.02), GuardrailSpec("latency_p95", max_ratio=1.5))
# Steps that go on before guardrails are known: most tests are about other things
RAMP = RampSpec((0.05, 0.25, 1.0), "new", min_requests=100, min_time=10.0, fuse=FuseSpec(), require="unbreached")


def experiment(name: str = "x", ramp: RampSpec | None = RAMP, bandit: BanditSpec | None = None) -> ExperimentSpec:
    return ExperimentSpec(name, ARMS, guardrails=GUARDRAILS, ramp=ramp, bandit=bandit)


def rules(*experiments: ExperimentSpec) -> RulesSpec:
    engines = {name: EngineSpec(name, (EndpointSpec(f"http://{name}"),)) for name in "abc"}
    return RulesSpec(engines, (), {each.name: each for each in experiments})


def counts(requests: int = 0, errors: int = 0, *, crossed: int = 0, arm: str = "new") -> ArmCounts:
    """Counts with these numbers in the first bucket."""
    made = ArmCounts(ArmKey("x", arm))
    made.requests[0], made.errors[0], made.crossed = requests, errors, crossed
    return made


@dataclass
class Engine:
    """An arm's engine: its error rate, its latency, and the share of units that it loses."""

    error_rate: float = 0.01
    seconds: float = 0.1
    loses: float = 0.0  # share of the units that are sent to it and never counted


@dataclass
class Workforce:
    """Draws arms for units, as workers do, and counts; it has no clock."""

    seed: int
    engines: Mapping[str, Engine]
    weights: Mapping[str, Shares] = field(default_factory=dict)
    written: list[tuple[str, dict[str, float], str, str]] = field(default_factory=list)
    refuses: str = ""
    counted: dict[ArmKey, ArmCounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def hands(self) -> GatewayActions:
        return GatewayActions(self._count, self._set, self._write)

    async def _count(self) -> Mapping[ArmKey, ArmCounts]:
        return {key: add(counts) for key, counts in self.counted.items()}

    def _set(self, weights: Mapping[str, Shares], runs: Mapping[str, int]) -> None:
        self.weights = weights

    async def _write(self, name: str, weights: Mapping[str, float], author: str, reason: str) -> None:
        if self.refuses:
            raise RulesNotWritten(self.refuses)
        self.written.append((name, dict(weights), author, reason))

    def serve(self, spec: ExperimentSpec, requests: int) -> None:
        """Serve requests, each of a unit of its own."""
        shares = self.weights.get(spec.name) or weights_of(spec)
        for _ in range(requests):
            arm = self._random.choices(list(shares), list(shares.values()))[0]
            engine = self.engines[arm]
            if self._random.random() < engine.loses:
                continue
            self._add(ArmKey(spec.name, arm), engine)

    def _add(self, key: ArmKey, engine: Engine) -> None:
        counted = self.counted.setdefault(key, ArmCounts(key))
        bucket = self._random.randrange(NUM_BUCKETS)
        counted.requests[bucket] += 1
        counted.units[bucket] += 1
        counted.request_bytes[bucket] += 100.0
        if self._random.random() < engine.error_rate:
            counted.errors[bucket] += 1
            return
        seconds = self._random.lognormvariate(0.0, 0.4) * engine.seconds
        counted.latency.count[bucket] += 1
        counted.latency.seconds[bucket] += seconds
        number = bin_of(seconds)
        counted.latency.bins[number] = counted.latency.bins.get(number, 0) + 1
