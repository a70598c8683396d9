"""Runs the experiments of a gateway: reports counts and checks fuses every second; the leading gateway evaluates the
evidence at each tick. A decision of any gateway takes effect on all of them within a moment.

While Redis is unavailable there is no leader and shares stay, except that a gateway's own counts can trip a fuse.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import inf

from gateway.config.specs import RulesSpec
from gateway.experiments import runs
from gateway.experiments.coordination import Coordination, CoordinationState, Json
from gateway.experiments.evidence import TimeSeries, write_counts
from gateway.experiments.experiment_state import DeclaredExperiment, ExperimentState
from gateway.experiments.leader import Leader, decision
from gateway.experiments.runs import ITSELF, RunState, RunStatus, Shares, are_same, fingerprint, weights_of
from gateway.experiments.serialization import experiment_json
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.stats import RunFacts
from gateway.redis.bounded_client import end
from gateway.redis.command import StoreError

_log = logging.getLogger("pointsman")

BEAT_SECONDS = 1.0
# The leader writes the rules; a follower does so if it has not happened within this time.
_WRITING_SECONDS = 5.0
# What only the leader computes of an experiment.
_LEADER_FIELDS = ("arms", "comparisons", "guardrails", "sample_ratio", "next")


class RulesNotWritten(Exception):  # noqa: N818
    """The final weights of a run could not be written to the rules; the message says why."""


@dataclass(frozen=True, slots=True)
class GatewayActions:
    """The gateway's functions that experiments use."""

    count: Callable[[], Awaitable[Mapping[ArmKey, ArmCounts]]]  # the workers' totals since the start
    set_weights: Callable[[Mapping[str, Shares], Mapping[str, int]], None]  # shares and run numbers
    # experiment, weights by arm, author, reason. Raises: RulesNotWritten.
    write_weights: Callable[[str, Mapping[str, float], str, str], Awaitable[None]]
    notify: Callable[[str], None] = lambda name: None  # publish to other gateways that an experiment has changed
    in_flight: Callable[[], Mapping[ArmKey, int]] = dict  # active requests at the last count


class ExperimentController:
    """`tick` is the interval of evaluations in seconds."""

    def __init__(
        self,
        coordination: Coordination,
        actions: GatewayActions,
        *,
        tick: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordination = coordination
        self._actions = actions
        self._tick = tick
        self._clock = clock
        self._beat_seconds = min(BEAT_SECONDS, tick)
        self._experiments: dict[str, ExperimentState] = {}
        self._applied: dict[str, int] = {}  # by experiment: the turn whose shares the workers use
        self._weights: tuple[Mapping[str, Shares], Mapping[str, int]] = {}, {}
        self._pending: dict[str, tuple[RunState, Json]] = {}  # decided while Redis was unavailable
        # By experiment: the revision whose final weights are to be written to the rules, and when; inf: they were
        self._writings: dict[str, tuple[int, float]] = {}
        self._report: dict[str, Json] = {}  # this gateway's last report
        self._lead = Leader(coordination, self._changed, tick, clock)
        self._leader = ""
        self._last_tick_at = -inf
        self._is_due = asyncio.Event()
        self._is_woken = True
        self._one_at_a_time = asyncio.Lock()
        self._listeners: list[tuple[Callable[[list[Json]], None], Callable[[], bool]]] = []
        self._task: asyncio.Task[None] | None = None
        self._is_away = False

    # Beginning and ending

    async def open(self, rules: RulesSpec) -> None:
        """Load the current state before the first request."""
        self.use_rules(rules)
        await self._look_safely()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Stop, and release the leadership."""
        if self._task is not None:
            await end(self._task)
        await self._coordination.close()

    def use_rules(self, rules: RulesSpec) -> None:
        for name in self._experiments.keys() - rules.experiments.keys():
            del self._experiments[name]
        for name, spec in rules.experiments.items():
            declared = DeclaredExperiment(spec, fingerprint(spec, rules.engines))
            if name in self._experiments:
                self._experiments[name].use(declared)
            else:
                self._experiments[name] = ExperimentState(declared)
        self._apply()
        self.wake()

    def on_tick(self, listener: Callable[[list[Json]], None], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Call `listener` with the JSON of all experiments after each tick; it must not block."""
        self._listeners.append((listener, is_wanted))

    async def _keep(self) -> None:
        while True:
            await self._look_safely()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), self._beat_seconds if self._has_work else None)
            self._is_due.clear()

    @property
    def _has_work(self) -> bool:
        return bool(self._experiments) or self.is_leader

    async def _look_safely(self) -> None:
        if not self._has_work:
            return
        try:
            await self.beat()
        except Exception:  # a bug must not stop the ramps
            _log.exception("experiments could not be evaluated")

    def wake(self) -> None:
        """React soon to a change of the rules, or by another gateway."""
        self._is_woken = True
        self._is_due.set()

    # Each second

    async def beat(self) -> None:
        """Run one beat: report, adopt, evaluate if leading."""
        async with self._one_at_a_time:
            is_tick = self._clock() - self._last_tick_at >= self._tick
            if is_tick or self._is_woken or any(each.is_live for each in self._experiments.values()):
                await self._beat(is_tick)

    async def _beat(self, is_tick: bool) -> None:
        self._is_woken = False
        counts: dict[str, dict[str, ArmCounts]] = {}
        applied = dict(self._applied)  # the turns during which these were counted
        for key, arm in (await self._actions.count()).items():
            counts.setdefault(key.experiment, {})[key.arm] = arm
        self._watch_fuses(counts)
        try:
            self._report = {
                name: {
                    "turn": applied.get(name, 0),
                    "arms": {arm: write_counts(each) for arm, each in counts.get(name, {}).items()},
                }
                for name in self._experiments
            }
            shared = await self._coordination.beat(self._report)
            await self._share_pending(shared)
            self._adopt(shared)
            self._apply()  # before slower work
            if shared.token is not None:
                mine = {name: experiment for name, experiment in self._experiments.items() if name not in self._pending}
                await self._lead.lead(mine, shared)
            else:
                self._lead.token = None
                if is_tick:
                    for experiment in self._experiments.values():
                        stored = await self._coordination.load(experiment.name, ("told",))
                        experiment.leader_json = stored.get("told", {})
            self._is_away = False
        except StoreError as error:
            if not self._is_away:
                _log.warning("experiments keep their shares while their shared state is unavailable: %s", error)
            self._is_away, self._lead.token, self._leader = True, None, ""
        self._apply()
        await self._write_rules()
        if is_tick:
            self._last_tick_at = self._clock()
            listeners = [listener for listener, is_wanted in self._listeners if is_wanted()]
            experiments_json = self.experiments_json() if listeners else []
            for listener in listeners:
                listener(experiments_json)

    def _watch_fuses(self, counts: Mapping[str, Mapping[str, ArmCounts]]) -> None:
        """Check the fuses on this gateway's own counts and act at once; others follow when Redis has the change."""
        in_flight = self._actions.in_flight()
        for experiment in self._experiments.values():
            here = {key.arm: number for key, number in in_flight.items() if key.experiment == experiment.name}
            blown = experiment.tripped_here(counts.get(experiment.name, {}), here, self._clock())
            if blown is not None and experiment.name not in self._pending:
                self._roll_back_here(experiment, ITSELF, blown.reason, asdict(blown.finding))

    def _roll_back_here(self, experiment: ExperimentState, by: str, reason: str, numbers: Json) -> None:
        """Roll back at once, independently of the leader."""
        assert experiment.state is not None
        state = runs.roll_back(experiment.spec, experiment.state, time.time(), by, reason)
        state = replace(state, weights=weights_of(experiment.spec))
        self._pending[experiment.name] = state, decision(experiment.name, "rolled_back", state, numbers, state.since)
        experiment.adopt(state)
        self._apply()
        _log.warning("experiment '%s' is rolled back: %s", experiment.name, reason)

    async def _share_pending(self, shared: CoordinationState) -> None:
        """Write local decisions to the shared state, unless the run there has already ended."""
        for name, (state, why) in list(self._pending.items()):
            there = shared.states.get(name)
            if there is not None and there.run == state.run and there.status.is_live:
                revised = replace(state, revision=there.revision + 1, turn=there.turn + 1)
                if not await self._coordination.change(name, revised, there.revision, why, None):
                    continue  # changed concurrently: retried at the next beat
                self._actions.notify(name)
                if name in self._experiments:
                    self._experiments[name].adopt(revised)
            del self._pending[name]
            self.wake()

    def _adopt(self, shared: CoordinationState) -> None:
        """Adopt the shared states, except where this gateway's is newer."""
        self._leader = shared.leader
        for name, experiment in self._experiments.items():
            state = shared.states.get(name)
            newer = experiment.state is not None and state is not None and experiment.state.revision > state.revision
            if state is not None and state != experiment.state and name not in self._pending and not newer:
                experiment.adopt(state)

    def run_of(self, name: str) -> int:
        """The number of the run whose shares are active; 0 if the rules' weights are."""
        return self._experiments[name].run if name in self._experiments else 0

    def _apply(self) -> None:
        """Send the active shares to the workers."""
        active = {name: state for name, each in self._experiments.items() if (state := each.active) is not None}
        weights = {name: dict(state.shares) for name, state in active.items() if state.shares}
        numbers = {name: active[name].run for name in weights}
        if (weights, numbers) != self._weights:
            self._weights = weights, numbers
            self._actions.set_weights(weights, numbers)
        self._applied = {name: state.turn for name, state in active.items()}

    def _changed(self, name: str) -> None:
        self._apply()
        self._actions.notify(name)
        self.wake()

    # Ends

    async def _write_rules(self) -> None:
        """Write the final weights of ended runs to this gateway's rules."""
        for experiment in list(self._experiments.values()):
            state = experiment.active
            if state is None or state.status not in (RunStatus.FINISHED, RunStatus.ROLLED_BACK):
                continue
            if self._has_tried(experiment.name, state.revision) or are_same(weights_of(experiment.spec), state.shares):
                continue
            weights = {arm: round(100 * share, 6) for arm, share in state.shares.items()}
            try:
                author = f"experiment {experiment.name}" if state.by == ITSELF else state.by
                await self._actions.write_weights(experiment.name, weights, author, f"{state.status}: {state.reason}")
            except RulesNotWritten as error:
                _log.warning(
                    "the rules keep the weights of experiment '%s', which are not in force: %s", experiment.name, error
                )

    def _has_tried(self, name: str, revision: int) -> bool:
        """Whether this revision has been written, or another gateway may still write it."""
        known, due = self._writings.get(name, (-1, 0.0))
        if known != revision:
            due = self._clock() + (0.0 if self.is_leader else _WRITING_SECONDS)
        is_due = self._clock() >= due
        self._writings[name] = revision, inf if is_due else due
        return not is_due

    # Operators

    async def command(
        self,
        name: str,
        action: str,
        change: Callable[[ExperimentState, RunState, float], RunState],
        by: str,
        reason: str,
    ) -> Json:
        """Apply an operator's change to a run, on any gateway.

        Raises: KeyError if there is no such experiment, CommandRefused, StoreError.
        """
        async with self._one_at_a_time:
            experiment = self._experiments[name]
            for _ in range(3):  # concurrent changes
                shared = await self._coordination.beat(self._report)
                self._adopt(shared)
                if experiment.active is None:
                    raise runs.CommandRefused("its rules have just changed: ask again in a moment")
                state = change(experiment, experiment.active, shared.now)
                if await self._lead.commit(experiment, state, action, shared.now, by_operator=True):
                    _log.info("experiment '%s': %s by %s%s", name, action, by, f" ({reason})" if reason else "")
                    return self.experiment_json(name)
            raise StoreError("others change this experiment at the same time: ask again")

    async def roll_back_anyway(self, name: str, by: str, reason: str) -> Json:
        """Roll back on this gateway while Redis is unavailable; others follow when it returns.

        Raises: KeyError, CommandRefused.
        """
        async with self._one_at_a_time:
            experiment = self._experiments[name]
            if not experiment.is_live:
                raise runs.CommandRefused("what all gateways share cannot be reached, and nothing runs here")
            self._roll_back_here(experiment, by, reason, {})
            return self.experiment_json(name)

    # Reports

    @property
    def is_leader(self) -> bool:
        return self._lead.token is not None

    def facts(self) -> dict[str, RunFacts]:
        """The active state of each experiment, as far as loaded."""
        return {
            name: RunFacts(state.status.value, state.step, state.in_force)
            for name, experiment in self._experiments.items()
            if (state := experiment.active) is not None
        }

    def experiments_json(self) -> list[Json]:
        """All experiments as JSON."""
        return [self.experiment_json(name) for name in self._experiments]

    def experiment_json(self, name: str) -> Json:
        """Raises: KeyError."""
        experiment = self._experiments[name]
        fields = experiment_json(experiment)
        known = {} if self.is_leader else experiment.leader_json
        leader_fields = {field: known[field] for field in _LEADER_FIELDS if field in known}
        if experiment.state is None and self._leader and not self.is_leader:
            leader_fields = {"next": f"{self._leader} leads, and its rules have no such experiment"}
        return {**fields, **leader_fields, "leader": self._leader, "is_away": self._is_away}

    async def history(self, name: str, since: float = 0.0) -> list[Json]:
        """Points for charts; while Redis is unavailable, this gateway's own. Raises: KeyError."""
        experiment = self._experiments[name]
        if not self.is_leader:
            with suppress(StoreError):
                stored = await self._coordination.load(name, ("series", "tail"))
                return TimeSeries([*stored.get("series", []), *stored.get("tail", [])]).since(since)
        return experiment.series.since(since)

    async def evidence(self, name: str) -> list[Json]:
        """The counts of the run by period, arm and bucket, the oldest first: what statistics are computed from.

        Raises: KeyError; StoreError where another gateway leads, and its evidence cannot be read.
        """
        experiment = self._experiments[name]
        if self.is_leader:
            return [experiment.evidence.write(number) for number in experiment.evidence.numbers]
        parts = await self._coordination.load(name)
        periods = [part for key, part in parts.items() if key.startswith("period:")]
        return sorted(periods, key=lambda period: int(period["number"]))

    async def decisions(self, limit: int) -> Sequence[Json]:
        """The last decisions, newest first. Raises: StoreError."""
        return await self._coordination.decisions(limit)

    async def record(self, name: str, action: str, by: str, reason: str, numbers: Json) -> None:
        """Raises: StoreError."""
        decision = {"time": time.time(), "experiment": name, "action": action, "by": by, "reason": reason}
        await self._coordination.record({**decision, "numbers": numbers})
