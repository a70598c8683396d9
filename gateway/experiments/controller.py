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
from gateway.experiments import commands
from gateway.experiments.coordination import Coordination, CoordinationState, Json
from gateway.experiments.evidence import TimeSeries, write_counts
from gateway.experiments.experiment_state import DeclaredExperiment, ExperimentState
from gateway.experiments.leader import Leader, StateCommits, decision
from gateway.experiments.runs import ITSELF, RunState, RunStatus, Shares, are_same, weights_of
from gateway.experiments.serialization import experiment_json
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.stats import RunFacts
from gateway.redis.bounded_client import end
from gateway.redis.command import StoreError

_log = logging.getLogger("pointsman")

BEAT_SECONDS = 1.0
# The leader writes the rules; a follower does so if it has not happened within this time.
_WRITING_SECONDS = 5.0


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


@dataclass(slots=True)
class _Writing:
    """A pending write of a run's final weights to the rules."""

    revision: int
    due: float
    is_done: bool = False


class ExperimentController:
    """`tick` is the interval of evaluations in seconds."""

    def __init__(
        self,
        home: Coordination,
        hands: GatewayActions,
        *,
        tick: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._hands = hands
        self._tick = tick
        self._clock = clock
        self._beat_seconds = min(BEAT_SECONDS, tick)
        self._trials: dict[str, ExperimentState] = {}
        self._applied: dict[str, int] = {}  # by experiment: the turn whose shares the workers use
        self._weights: tuple[Mapping[str, Shares], Mapping[str, int]] = {}, {}
        self._pending: dict[str, tuple[RunState, Json]] = {}  # decided while Redis was unavailable
        self._tried: dict[str, _Writing] = {}  # by experiment
        self._report: dict[str, Json] = {}  # this gateway's last report
        self._changes = StateCommits(home, self._changed)
        self._lead = Leader(home, self._changes, tick, clock)
        self._leader = ""
        self._last_tick_at = -inf
        self._is_due = asyncio.Event()
        self._is_woken = True
        self._one_at_a_time = asyncio.Lock()
        self._listeners: list[tuple[Callable[[list[Json]], None], Callable[[], bool]]] = []
        self._task: asyncio.Task[None] | None = None
        self._is_away = False

    def __repr__(self) -> str:
        live = [trial.name for trial in self._trials.values() if trial.is_live]
        return (
            f"<Experiments: {len(self._trials)}, {', '.join(live) or 'none'} under way, led by {self._leader or '?'}>"
        )

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
        await self._home.close()

    def use_rules(self, rules: RulesSpec) -> None:
        declared = {name: DeclaredExperiment.of(spec, rules.engines) for name, spec in rules.experiments.items()}
        for name in self._trials.keys() - declared.keys():
            del self._trials[name]
        for name, each in declared.items():
            if name in self._trials:
                self._trials[name].use(each)
            else:
                self._trials[name] = ExperimentState(each)
        self._apply()
        self._wake()

    def look(self) -> None:
        """React to a change by another gateway."""
        self._wake()

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
        return bool(self._trials) or self.is_leader

    async def _look_safely(self) -> None:
        if not self._has_work:
            return
        try:
            await self.beat()
        except Exception:  # a bug must not stop the ramps
            _log.exception("experiments could not be evaluated")

    def _wake(self) -> None:
        self._is_woken = True
        self._is_due.set()

    # Each second

    async def beat(self) -> None:
        """Run one beat: report, adopt, evaluate if leading."""
        async with self._one_at_a_time:
            await self._beat()

    async def _beat(self) -> None:
        is_tick = self._clock() - self._last_tick_at >= self._tick
        if not (is_tick or self._is_woken or any(trial.is_live for trial in self._trials.values())):
            return
        self._is_woken = False
        counts: dict[str, dict[str, ArmCounts]] = {}
        applied = dict(self._applied)  # the turns during which these were counted
        for key, arm in (await self._hands.count()).items():
            counts.setdefault(key.experiment, {})[key.arm] = arm
        self._watch_fuses(counts)
        try:
            self._report = self._count_report(counts, applied)
            shared = await self._home.beat(self._report)
            await self._share_pending(shared)
            self._adopt(shared)
            self._apply()  # before slower work
            if shared.token is not None:
                mine = {name: trial for name, trial in self._trials.items() if name not in self._pending}
                await self._lead.lead(mine, shared)
            else:
                self._lead.token = None
                if is_tick:
                    await self._follow()
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

    def _count_report(
        self, counts: Mapping[str, Mapping[str, ArmCounts]], applied: Mapping[str, int]
    ) -> dict[str, Json]:
        """This gateway's report of its counts."""
        return {
            name: {
                "turn": applied.get(name, 0),
                "arms": {arm: write_counts(each) for arm, each in counts.get(name, {}).items()},
            }
            for name in self._trials
        }

    def _watch_fuses(self, counts: Mapping[str, Mapping[str, ArmCounts]]) -> None:
        """Check the fuses on this gateway's own counts and act at once; others follow when Redis has the change."""
        in_flight = self._hands.in_flight()
        for trial in self._trials.values():
            here = {key.arm: number for key, number in in_flight.items() if key.experiment == trial.name}
            tripped = trial.tripped_here(counts.get(trial.name, {}), here, self._clock())
            if tripped is not None and trial.name not in self._pending:
                self._roll_back_here(trial, ITSELF, f"the fuse has blown: {tripped}", asdict(tripped))

    def _roll_back_here(self, trial: ExperimentState, by: str, reason: str, numbers: Json) -> None:
        """Roll back at once, independently of the leader."""
        assert trial.state is not None
        state = commands.roll_back(trial.spec, trial.state, time.time(), by, reason)
        state = replace(state, weights=weights_of(trial.spec))
        self._pending[trial.name] = state, decision(trial.name, "rolled_back", state, numbers, state.since)
        trial.adopt(state)
        self._apply()
        _log.warning("experiment '%s' is rolled back: %s", trial.name, reason)

    async def _share_pending(self, shared: CoordinationState) -> None:
        """Write local decisions to the shared state, unless the run there has already ended."""
        for name, (state, why) in list(self._pending.items()):
            there = shared.states.get(name)
            if there is not None and there.run == state.run and there.status.is_live:
                revised = replace(state, revision=there.revision + 1, turn=there.turn + 1)
                if not await self._home.change(name, revised, there.revision, why, None):
                    continue  # changed concurrently: retried at the next beat
                self._hands.notify(name)
                if name in self._trials:
                    self._trials[name].adopt(revised)
            del self._pending[name]
            self._wake()

    def _adopt(self, shared: CoordinationState) -> None:
        """Adopt the shared states, except where this gateway's is newer."""
        self._leader = shared.leader
        for name, trial in self._trials.items():
            state = shared.states.get(name)
            newer = trial.state is not None and state is not None and trial.state.revision > state.revision
            if state is not None and state != trial.state and name not in self._pending and not newer:
                trial.adopt(state)

    def run_of(self, name: str) -> int:
        """The number of the run whose shares are active; 0 if the rules' weights are."""
        return self._trials[name].run if name in self._trials else 0

    def _apply(self) -> None:
        """Send the active shares to the workers."""
        weights = {
            name: dict(trial.state.shares)
            for name, trial in self._trials.items()
            if trial.state is not None and trial.run
        }
        runs = {name: self._trials[name].run for name in weights}
        if (weights, runs) != self._weights:
            self._weights = weights, runs
            self._hands.set_weights(weights, runs)
        self._applied = {
            name: trial.state.turn
            for name, trial in self._trials.items()
            if trial.state is not None and trial.is_in_force
        }

    def _changed(self, name: str) -> None:
        self._apply()
        self._hands.notify(name)
        self._wake()

    # Following

    async def _follow(self) -> None:
        """Read the leader's evaluation. Raises: StoreError."""
        for trial in self._trials.values():
            trial.leader_json = (await self._home.load(trial.name, ("told",))).get("told", {})

    # Ends

    async def _write_rules(self) -> None:
        """Write the final weights of ended runs to this gateway's rules."""
        for trial in list(self._trials.values()):
            state = trial.state
            if (
                state is None
                or not trial.is_in_force
                or state.status not in (RunStatus.FINISHED, RunStatus.ROLLED_BACK)
            ):
                continue
            if self._has_tried(trial.name, state.revision) or are_same(weights_of(trial.spec), state.shares):
                continue
            weights = {arm: round(100 * share, 6) for arm, share in state.shares.items()}
            try:
                author = f"experiment {trial.name}" if state.by == ITSELF else state.by
                await self._hands.write_weights(trial.name, weights, author, f"{state.status}: {state.reason}")
            except RulesNotWritten as error:
                _log.warning(
                    "the rules keep the weights of experiment '%s', which are not in force: %s", trial.name, error
                )

    def _has_tried(self, name: str, revision: int) -> bool:
        """Whether this revision has been written, or another gateway may still write it."""
        writing = self._tried.get(name)
        if writing is None or writing.revision != revision:
            wait = 0.0 if self.is_leader else _WRITING_SECONDS
            writing = self._tried[name] = _Writing(revision, self._clock() + wait)
        if writing.is_done or self._clock() < writing.due:
            return True
        writing.is_done = True
        return False

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
            trial = self._trials[name]
            for _ in range(3):  # concurrent changes
                shared = await self._home.beat(self._report)
                self._adopt(shared)
                if trial.state is None or not trial.is_in_force:
                    raise commands.CommandRefused("its rules have just changed: ask again in a moment")
                state = change(trial, trial.state, shared.now)
                if await self._changes.put(trial, state, action, shared.now):
                    _log.info("experiment '%s': %s by %s%s", name, action, by, f" ({reason})" if reason else "")
                    return self.experiment_json(name)
            raise StoreError("others change this experiment at the same time: ask again")

    async def roll_back_anyway(self, name: str, by: str, reason: str) -> Json:
        """Roll back on this gateway while Redis is unavailable; others follow when it returns.

        Raises: KeyError, CommandRefused.
        """
        async with self._one_at_a_time:
            trial = self._trials[name]
            if not trial.is_live:
                raise commands.CommandRefused("what all gateways share cannot be reached, and nothing runs here")
            self._roll_back_here(trial, by, reason, {})
            return self.experiment_json(name)

    # Reports

    @property
    def is_leader(self) -> bool:
        return self._lead.token is not None

    def facts(self) -> dict[str, RunFacts]:
        """The active state of each experiment, as far as loaded."""
        return {
            name: RunFacts(trial.state.status.value, trial.state.step, trial.state.in_force)
            for name, trial in self._trials.items()
            if trial.state is not None and trial.is_in_force
        }

    def experiments_json(self) -> list[Json]:
        """All experiments as JSON."""
        return [self.experiment_json(name) for name in self._trials]

    def experiment_json(self, name: str) -> Json:
        """Raises: KeyError."""
        trial = self._trials[name]
        fields = experiment_json(trial)
        leader_fields = {} if self.is_leader else _leader_fields(trial.leader_json)
        if trial.state is None and self._leader and not self.is_leader:
            leader_fields = {"next": f"{self._leader} leads, and its rules have no such experiment"}
        return {**fields, **leader_fields, "leader": self._leader, "is_away": self._is_away}

    async def history(self, name: str, since: float = 0.0) -> list[Json]:
        """Points for charts; while Redis is unavailable, this gateway's own. Raises: KeyError."""
        trial = self._trials[name]
        if not self.is_leader:
            with suppress(StoreError):
                stored = await self._home.load(name, ("series", "tail"))
                return TimeSeries([*stored.get("series", []), *stored.get("tail", [])]).since(since)
        return trial.series.since(since)

    async def decisions(self, limit: int) -> Sequence[Json]:
        """The last decisions, newest first. Raises: StoreError."""
        return await self._home.decisions(limit)

    async def record(self, name: str, action: str, by: str, reason: str, numbers: Json) -> None:
        """Raises: StoreError."""
        decision = {"time": time.time(), "experiment": name, "action": action, "by": by, "reason": reason}
        await self._home.record({**decision, "numbers": numbers})


def _leader_fields(fields: Json) -> Json:
    """The fields that only the leader computes."""
    return {
        name: fields[name] for name in ("arms", "comparisons", "guardrails", "sample_ratio", "next") if name in fields
    }
