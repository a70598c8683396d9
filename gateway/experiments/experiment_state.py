"""The state of one experiment on one gateway: its rules, its run, and the evidence if this gateway leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from gateway.config.experiment_specs import ExperimentSpec, FuseSpec
from gateway.experiments.coordination import CountReport, Json
from gateway.experiments.evaluation import Evaluation, judge, unmeasured
from gateway.experiments.evidence import Evidence, TimeSeries, read_counts
from gateway.experiments.fuse import ArmPace, Fuse, FuseTripped, Stall, StalledArm, outcome_counts
from gateway.experiments.ramp_policy import Exposure, RampAction, RampVerb, decide
from gateway.experiments.runs import RunState, weights_of
from gateway.observability.arm_stats import ArmCounts, ArmKey

# A report of this age counts as current, so one or two late beats do not matter.
FRESH_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class BlownFuse:
    """The finding of a gateway that ends a run, and the reason as a sentence."""

    finding: FuseTripped | StalledArm
    reason: str


@dataclass(frozen=True, slots=True)
class DeclaredExperiment:
    """An experiment as declared in the rules, with a fingerprint of everything that a run depends on."""

    spec: ExperimentSpec
    fingerprint: str

    @property
    def arm(self) -> str | None:
        """The arm that a ramp grows."""
        return self.spec.ramp.arm if self.spec.ramp is not None else None

    @property
    def fuse(self) -> FuseSpec | None:
        """When one of the `fused` arms has collapsed."""
        moving = self.spec.ramp or self.spec.bandit
        return moving.fuse if moving is not None else None

    @property
    def fused(self) -> tuple[str, ...]:
        """The arms with a fuse: that of a ramp, or all of a bandit but the control, which gets their traffic."""
        if self.spec.ramp is not None:
            return (self.spec.ramp.arm,)
        control = self.spec.control_arm.name
        return tuple(arm.name for arm in self.spec.arms if arm.name != control) if self.spec.bandit is not None else ()

    def fresh(self) -> RunState:
        """The initial state."""
        return RunState(self.fingerprint, weights_of(self.spec))


class ExperimentState:
    """Holds the state; the leader feeds it with gateways' reports and queries it."""

    def __init__(self, declared: DeclaredExperiment) -> None:
        self.name = declared.spec.name
        self._declare(declared)
        self.state: RunState | None = None
        self.evidence = Evidence(self.name)
        self.series = TimeSeries()
        self.evaluation: Evaluation | None = None
        self._evaluated_revision = 0  # the evidence's revision
        self.action = RampAction(RampVerb.REST)
        self.leader_json: Json = {}  # the leader's evaluation, if another gateway leads
        self.has_read = False  # whether the earlier leader's evidence is loaded
        self.tail: list[Json] = []  # points that are not stored with the series yet
        self.stored_periods: set[int] = set()  # stored periods that no longer change; 0: some evidence is stored
        self.stored_at: tuple[int, int, str] | None = None  # at the last store: revisions and reason
        self.judged_at = -inf  # by this gateway's clock
        self.has_reported_mismatch = False
        self.bandit_updated_at = 0.0  # the last update of a bandit
        self._missing: tuple[str, ...] = ()

    @property
    def spec(self) -> ExperimentSpec:
        return self.declared.spec

    def _declare(self, declared: DeclaredExperiment) -> None:
        self.declared = declared
        fuse = declared.fuse or FuseSpec()
        self._fuses = {arm: Fuse(fuse) for arm in declared.fused}
        self._own_fuses = {arm: Fuse(fuse) for arm in declared.fused}
        self._stalls = {arm: Stall(fuse.min_requests) for arm in declared.fused}

    def use(self, declared: DeclaredExperiment) -> None:
        """The rules have changed."""
        if declared.fingerprint != self.declared.fingerprint or declared.fuse != self.declared.fuse:
            self._declare(declared)
        else:
            self.declared = declared

    @property
    def adopted(self) -> RunState:
        """The state, once there is one: nothing is evaluated or decided before."""
        assert self.state is not None
        return self.state

    @property
    def active(self) -> RunState | None:
        """The state of the run if it belongs to these rules: another gateway may already have newer ones."""
        is_current = self.state is not None and self.state.fingerprint == self.declared.fingerprint
        return self.state if is_current else None

    @property
    def run(self) -> int:
        """The number of the run whose shares are active; 0 if the rules' weights are."""
        return self.active.run if self.active is not None and self.active.shares else 0

    @property
    def is_live(self) -> bool:
        return self.active is not None and self.active.status.is_live

    def adopt(self, state: RunState) -> None:
        """Set the state after a decision of any gateway."""
        before, self.state = self.state, state
        if before is None or before.run != state.run:
            self.evidence, self.series, self.evaluation = Evidence(self.name), TimeSeries(), None
            self.tail, self.stored_periods = [], set()
            self.has_read = self.has_reported_mismatch = False
        if before is None or (before.run, before.turn) != (state.run, state.turn):
            for fuse in (*self._fuses.values(), *self._own_fuses.values()):
                fuse.begin_step()
        self.evidence.begin(state.turn, state.in_force)

    def restore(self, evidence: Evidence, series: TimeSeries) -> None:
        """Continue with an earlier leader's evidence."""
        self.evidence, self.series, self.evaluation = evidence, series, None
        self.stored_periods = {0, *evidence.numbers[:-1]}
        self.evidence.begin(self.adopted.turn, self.adopted.in_force)

    # Counts

    def tripped_here(self, arms: Mapping[str, ArmCounts], in_flight: Mapping[str, int], now: float) -> BlownFuse | None:
        """Whether this gateway's counts alone trip the fuse; `now` of any clock."""
        found = None
        for name, fuse in self._own_fuses.items():
            fuse.take("here", arms.get(name), now)
            arm, control = (
                ArmPace(outcome_counts(arms.get(each))[0], in_flight.get(each, 0))
                for each in (name, self.spec.control_arm.name)
            )
            stalled = self._stalls[name].look(arm, control, now)
            tripped = fuse.tripped(now) or stalled
            if tripped is not None and self.is_live:
                found = found or BlownFuse(tripped, self._blown(name, tripped))
        return found

    def _blown(self, arm: str, tripped: FuseTripped | StalledArm) -> str:
        """The reason for a rollback; the arm of a ramp is known."""
        subject = "the fuse" if self.spec.ramp is not None else f"the fuse of '{arm}'"
        return f"{subject} has blown: {tripped}"

    def take(self, reports: Mapping[str, CountReport], now: float) -> None:
        """Add the reports of all gateways."""
        turn, missing = self.adopted.turn, []
        for source, report in reports.items():
            counts = report.experiments.get(self.name)
            if counts is None or counts["turn"] != turn or report.age > FRESH_SECONDS:
                missing.append(source)
            if counts is not None:
                self._take(source, int(counts["turn"]), counts["arms"], now)
        self._missing = tuple(missing)

    def _take(self, source: str, turn: int, arms_json: Mapping[str, Any], now: float) -> None:
        try:
            arms = {arm: read_counts(ArmKey(self.name, arm), counts) for arm, counts in arms_json.items()}
        except (TypeError, ValueError, AttributeError):
            return  # written by another version
        self.evidence.take(source, turn, arms, now)
        for arm, fuse in self._fuses.items():
            fuse.take(source, arms.get(arm), now)

    # Decisions

    def fuse_action(self, now: float) -> RampAction:
        """The action between ticks: only a tripped fuse counts."""
        if self.state is None or not self.is_live:
            return RampAction(RampVerb.REST)
        for arm, fuse in self._fuses.items():
            tripped = fuse.tripped(now)
            if tripped is not None:
                return RampAction(RampVerb.ROLL_BACK, self._blown(arm, tripped))
        return RampAction(RampVerb.REST)

    def judge(self, now: float) -> RampAction:
        """Evaluate the evidence. Returns: the ramp's next action."""
        if self.evaluation is None or self._evaluated_revision != self.evidence.revision:
            self._evaluated_revision = self.evidence.revision
            self.evaluation = judge(self.spec, self.evidence.strata)
        self.action = self._next(self.adopted, self.evaluation, now)
        return self.action

    def _next(self, state: RunState, evaluation: Evaluation, now: float) -> RampAction:
        blown = self.fuse_action(now)
        if blown.verb is not RampVerb.REST:
            return blown
        if self.spec.ramp is None:
            breaches = evaluation.breaches()
            if self.spec.bandit is not None and state.status.is_live and breaches:
                return RampAction(RampVerb.ROLL_BACK, "; ".join(breaches))
            return RampAction(RampVerb.REST)
        arm = self.spec.ramp.arm
        seen = Exposure(
            self.evidence.requests(arm),
            evaluation.breaches(arm),
            evaluation.mismatch,
            self._missing,
            None,
            unmeasured(self.spec, self.evidence.strata, arm),
            evaluation.unknown(arm),
        )
        return decide(self.spec.ramp, state, seen, now)
