"""One experiment as one gateway knows it: its rules, its run, and, where this gateway leads, the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from gateway.config.experiment_specs import ExperimentSpec, FuseSpec
from gateway.config.specs import EngineSpec
from gateway.experiments.coordination import Json, Word
from gateway.experiments.evaluation import Judgement, judge, unmeasured
from gateway.experiments.evidence import Evidence, TimeSeries, read_counts
from gateway.experiments.fuse import Blown, Fuse, Pace, Stall, Stuck, fared
from gateway.experiments.ramp_policy import Action, Exposure, Verb, decide
from gateway.experiments.runs import RunState, fingerprint, weights_of
from gateway.observability.arm_stats import ArmCounts, ArmKey

# What a gateway told is of now, though a beat or two were late.
FRESH_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Declared:
    """What the rules say of an experiment, and of the engines of its arms as far as a run depends on them."""

    spec: ExperimentSpec
    fingerprint: str

    @classmethod
    def of(cls, spec: ExperimentSpec, engines: Mapping[str, EngineSpec]) -> Declared:
        return cls(spec, fingerprint(spec, engines))

    @property
    def arm(self) -> str | None:
        """The arm that a ramp grows."""
        return self.spec.ramp.arm if self.spec.ramp is not None else None

    def fresh(self) -> RunState:
        """The state of one that has never run."""
        return RunState(self.fingerprint, weights_of(self.spec))


class ExperimentState:
    """It decides nothing by itself: it is fed with words of gateways, and asked."""

    def __init__(self, declared: Declared) -> None:
        self.name = declared.spec.name
        self._declare(declared)
        self.state: RunState | None = None
        self.evidence = Evidence(self.name)
        self.series = TimeSeries()
        self.judgement: Judgement | None = None
        self._judged = 0  # the evidence's revision
        self.action = Action(Verb.REST)
        self.told: Json = {}  # by the leader, where that is another gateway
        self.has_read = False  # the evidence that an earlier leader kept
        self.tail: list[Json] = []  # points that are not kept with the series yet
        self.kept: set[int] = set()  # periods that are kept as they are; 0: some evidence of this run is
        self.known: tuple[int, int, str] | None = None  # when evidence was last kept: revisions, and what is waited for
        self.judged_at = -inf  # of this gateway's own clock
        self.has_told_mismatch = False
        self.thought_at = 0.0  # when a bandit last did about its weights
        self._missing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<ExperimentState {self.name}: {self.state.status if self.state else 'unknown'}, {self.action.verb}>"

    @property
    def spec(self) -> ExperimentSpec:
        return self.declared.spec

    def _declare(self, declared: Declared) -> None:
        self.declared = declared
        fuse = declared.spec.ramp.fuse if declared.spec.ramp is not None else FuseSpec()
        self._fuse, self._own_fuse, self._stall = Fuse(fuse), Fuse(fuse), Stall(fuse.min_requests)

    def use(self, declared: Declared) -> None:
        """The rules have changed."""
        if declared.fingerprint != self.declared.fingerprint:
            self._declare(declared)
        else:
            self.declared = declared

    @property
    def is_in_force(self) -> bool:
        """Whether the run is one of these rules: where another gateway has newer ones, its state is none of ours."""
        return self.state is not None and self.state.fingerprint == self.declared.fingerprint

    @property
    def run(self) -> int:
        """The number of the run whose shares are in force; 0 where the rules' weights are."""
        return self.state.run if self.state is not None and self.is_in_force and self.state.shares else 0

    @property
    def is_live(self) -> bool:
        return self.is_in_force and self.state is not None and self.state.status.is_live

    def adopt(self, state: RunState) -> None:
        """It is so now, by a decision of this gateway or of another one."""
        before, self.state = self.state, state
        if before is None or before.run != state.run:
            self._forget_evidence()
        if before is None or (before.run, before.turn) != (state.run, state.turn):
            self._fuse.begin_step()
            self._own_fuse.begin_step()
        self.evidence.begin(state.turn, state.in_force)

    def _forget_evidence(self) -> None:
        self.evidence, self.series, self.judgement = Evidence(self.name), TimeSeries(), None
        self.tail, self.kept = [], set()
        self.has_read = self.has_told_mismatch = False

    def restore(self, evidence: Evidence, series: TimeSeries) -> None:
        """What an earlier leader kept of this run."""
        assert self.state is not None
        self.evidence, self.series, self.judgement = evidence, series, None
        self.kept = {0, *evidence.numbers[:-1]}
        self.evidence.begin(self.state.turn, self.state.in_force)

    # What is counted

    def blows_here(
        self, arms: Mapping[str, ArmCounts], in_flight: Mapping[str, int], now: float
    ) -> Blown | Stuck | None:
        """Whether the fuse blows by what this gateway alone sees; `now` of any clock."""
        if self.declared.arm is None:
            return None
        self._own_fuse.take("here", arms.get(self.declared.arm), now)
        arm, control = (
            Pace(fared(arms.get(name))[0], in_flight.get(name, 0))
            for name in (self.declared.arm, self.spec.control_arm.name)
        )
        stuck = self._stall.look(arm, control, now)
        return (self._own_fuse.blown(now) or stuck) if self.is_live else None

    def take(self, words: Mapping[str, Word], now: float) -> None:
        """What all gateways say that they have counted."""
        assert self.state is not None
        missing = []
        for source, word in words.items():
            told = word.experiments.get(self.name)
            if told is None or told["turn"] != self.state.turn or word.age > FRESH_SECONDS:
                missing.append(source)
            if told is not None:
                self._take(source, int(told["turn"]), told["arms"], now)
        self._missing = tuple(missing)

    def _take(self, source: str, turn: int, told: Mapping[str, Any], now: float) -> None:
        try:
            arms = {arm: read_counts(ArmKey(self.name, arm), counts) for arm, counts in told.items()}
        except (TypeError, ValueError, AttributeError):
            return  # of another version
        self.evidence.take(source, turn, arms, now)
        if self.declared.arm is not None:
            self._fuse.take(source, arms.get(self.declared.arm), now)

    # What follows

    def fuse_action(self, now: float) -> Action:
        """Between ticks: only a blown fuse counts."""
        if self.state is None or self.spec.ramp is None or not self.is_live:
            return Action(Verb.REST)
        blown = self._fuse.blown(now)
        if blown is None:
            return Action(Verb.REST)
        return decide(self.spec.ramp, self.state, Exposure(0, blown=blown), now)

    def judge(self, now: float) -> Action:
        """Look at all evidence; what a ramp does next."""
        assert self.state is not None
        if self.judgement is None or self._judged != self.evidence.revision:
            self._judged = self.evidence.revision
            self.judgement = judge(self.spec, self.evidence.strata)
        self.action = self._next(self.state, self.judgement, now)
        return self.action

    def _next(self, state: RunState, judgement: Judgement, now: float) -> Action:
        if self.spec.ramp is None:
            breaches = judgement.breaches()
            if self.spec.bandit is not None and state.status.is_live and breaches:
                return Action(Verb.ROLL_BACK, "; ".join(breaches))
            return Action(Verb.REST)
        arm = self.spec.ramp.arm
        seen = Exposure(
            self.evidence.requests(arm),
            judgement.breaches(arm),
            judgement.mismatch,
            self._missing,
            self._fuse.blown(now),
            unmeasured(self.spec, self.evidence.strata, arm),
        )
        return decide(self.spec.ramp, state, seen, now)

    @property
    def missing(self) -> Sequence[str]:
        """Gateways whose counts are not there."""
        return self._missing
