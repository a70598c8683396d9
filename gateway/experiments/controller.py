"""All experiments of a gateway, at work: each second counts are told and fuses looked at, each tick the evidence is
judged, by the one gateway that leads. What any of them decides is in force at all within a moment.

While Redis is away nobody leads: shares stay as they are, but for a fuse that blows by what one gateway sees itself.
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
from gateway.experiments.experiment_state import Declared, ExperimentState
from gateway.experiments.leader import Changes, Leader, decision
from gateway.experiments.runs import ITSELF, RunState, RunStatus, Shares, are_same, weights_of
from gateway.experiments.serialization import told_of
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.experiment_metrics import RunFacts
from gateway.redis.asyncio_util import end
from gateway.redis.errors import StoreError

_log = logging.getLogger("pointsman")

BEAT_SECONDS = 1.0
# The leader writes the rules; who does not lead does so where nobody has within this time.
_WRITING_SECONDS = 5.0


class RulesNotWritten(Exception):  # noqa: N818 - what has happened, told as such
    """The weights that a run ended with are not in the rules; the message says why."""


@dataclass(frozen=True, slots=True)
class Hands:
    """What experiments do to the gateway, and ask of it."""

    count: Callable[[], Awaitable[Mapping[ArmKey, ArmCounts]]]  # all that its workers have counted since it began
    set_weights: Callable[[Mapping[str, Shares], Mapping[str, int]], None]  # and the numbers of their runs
    # experiment, weights by arm, author, reason. Raises: RulesNotWritten.
    write_weights: Callable[[str, Mapping[str, float], str, str], Awaitable[None]]
    tell: Callable[[str], None] = lambda name: None  # other gateways, that an experiment has changed
    in_flight: Callable[[], Mapping[ArmKey, int]] = dict  # requests, when it was last counted


@dataclass(slots=True)
class _Writing:
    """Of the weights that a revision of a run ended with, into the rules."""

    revision: int
    due: float
    is_done: bool = False


class Experiments:
    """`tick` is how often evidence is judged, in seconds."""

    def __init__(
        self, home: Coordination, hands: Hands, *, tick: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._home = home
        self._hands = hands
        self._tick = tick
        self._clock = clock
        self._beat_seconds = min(BEAT_SECONDS, tick)
        self._trials: dict[str, ExperimentState] = {}
        self._applied: dict[str, int] = {}  # by experiment: the turn whose shares the workers go by
        self._weights: tuple[Mapping[str, Shares], Mapping[str, int]] = {}, {}
        self._pending: dict[str, tuple[RunState, Json]] = {}  # decided while Redis was away
        self._tried: dict[str, _Writing] = {}  # by experiment
        self._said: dict[str, Json] = {}  # this gateway's last word
        self._changes = Changes(home, self._changed)
        self._lead = Leader(home, self._changes, tick, clock)
        self._leader = ""
        self._told_at = -inf
        self._is_due = asyncio.Event()
        self._is_woken = True
        self._one_at_a_time = asyncio.Lock()
        self._hearers: list[tuple[Callable[[list[Json]], None], Callable[[], bool]]] = []
        self._keeping: asyncio.Task[None] | None = None
        self._is_away = False

    def __repr__(self) -> str:
        live = [trial.name for trial in self._trials.values() if trial.is_live]
        return (
            f"<Experiments: {len(self._trials)}, {', '.join(live) or 'none'} under way, led by {self._leader or '?'}>"
        )

    # Beginning and ending

    async def open(self, rules: RulesSpec) -> None:
        """Learn what is in force, before the first request comes."""
        self.use_rules(rules)
        await self._look_safely()

    def start(self) -> None:
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Leave the lead to another one."""
        if self._keeping is not None:
            await end(self._keeping)
        await self._home.close()

    def use_rules(self, rules: RulesSpec) -> None:
        declared = {name: Declared.of(spec, rules.engines) for name, spec in rules.experiments.items()}
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
        """Another gateway has changed something."""
        self._wake()

    def on_tick(self, hear: Callable[[list[Json]], None], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Have what is known of all experiments told after each tick; what cannot wait must not be done in `hear`."""
        self._hearers.append((hear, is_wanted))

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
        except Exception:  # a fault of ours must not leave ramps alone
            _log.exception("experiments could not be looked at")

    def _wake(self) -> None:
        self._is_woken = True
        self._is_due.set()

    # Each second

    async def beat(self) -> None:
        """Look at everything once."""
        async with self._one_at_a_time:
            await self._beat()

    async def _beat(self) -> None:
        is_tick = self._clock() - self._told_at >= self._tick
        if not (is_tick or self._is_woken or any(trial.is_live for trial in self._trials.values())):
            return
        self._is_woken = False
        counts: dict[str, dict[str, ArmCounts]] = {}
        applied = dict(self._applied)  # by which these were counted
        for key, arm in (await self._hands.count()).items():
            counts.setdefault(key.experiment, {})[key.arm] = arm
        self._watch_fuses(counts)
        try:
            self._said = self._word(counts, applied)
            found = await self._home.beat(self._said)
            await self._tell_pending(found)
            self._adopt(found)
            self._apply()  # before anything takes its time
            if found.token is not None:
                mine = {name: trial for name, trial in self._trials.items() if name not in self._pending}
                await self._lead.lead(mine, found)
            else:
                self._lead.token = None
                if is_tick:
                    await self._follow()
            self._is_away = False
        except StoreError as error:
            if not self._is_away:
                _log.warning("experiments keep their shares while what they share cannot be reached: %s", error)
            self._is_away, self._lead.token, self._leader = True, None, ""
        self._apply()
        await self._write_rules()
        if is_tick:
            self._told_at = self._clock()
            hearers = [hear for hear, is_wanted in self._hearers if is_wanted()]
            told = self.told() if hearers else []
            for hear in hearers:
                hear(told)

    def _word(self, counts: Mapping[str, Mapping[str, ArmCounts]], applied: Mapping[str, int]) -> dict[str, Json]:
        """What this gateway says of its counts."""
        return {
            name: {
                "turn": applied.get(name, 0),
                "arms": {arm: write_counts(each) for arm, each in counts.get(name, {}).items()},
            }
            for name in self._trials
        }

    def _watch_fuses(self, counts: Mapping[str, Mapping[str, ArmCounts]]) -> None:
        """What this gateway alone has seen is enough to act here at once; others hear of it as soon as Redis does."""
        in_flight = self._hands.in_flight()
        for trial in self._trials.values():
            here = {key.arm: number for key, number in in_flight.items() if key.experiment == trial.name}
            blown = trial.blows_here(counts.get(trial.name, {}), here, self._clock())
            if blown is not None and trial.name not in self._pending:
                self._roll_back_here(trial, ITSELF, f"the fuse has blown: {blown}", asdict(blown))

    def _roll_back_here(self, trial: ExperimentState, by: str, reason: str, numbers: Json) -> None:
        """At once, whoever leads."""
        assert trial.state is not None
        state = commands.roll_back(trial.spec, trial.state, time.time(), by, reason)
        state = replace(state, weights=weights_of(trial.spec))
        self._pending[trial.name] = state, decision(trial.name, "rolled_back", state, numbers, state.since)
        trial.adopt(state)
        self._apply()
        _log.warning("experiment '%s' is rolled back: %s", trial.name, reason)

    async def _tell_pending(self, found: CoordinationState) -> None:
        """Put what was decided here in the place of what all share, unless that has come to an end by itself."""
        for name, (state, why) in list(self._pending.items()):
            there = found.states.get(name)
            if there is not None and there.run == state.run and there.status.is_live:
                told = replace(state, revision=there.revision + 1, turn=there.turn + 1)
                if not await self._home.change(name, told, there.revision, why, None):
                    continue  # somebody was quicker: it is looked at again
                self._hands.tell(name)
                if name in self._trials:
                    self._trials[name].adopt(told)
            del self._pending[name]
            self._wake()

    def _adopt(self, found: CoordinationState) -> None:
        """What all share is so, but for what is newer here."""
        self._leader = found.leader
        for name, trial in self._trials.items():
            state = found.states.get(name)
            newer = trial.state is not None and state is not None and trial.state.revision > state.revision
            if state is not None and state != trial.state and name not in self._pending and not newer:
                trial.adopt(state)

    def run_of(self, name: str) -> int:
        """The number of the run whose shares an experiment's arms have; 0 where they have those of the rules."""
        return self._trials[name].run if name in self._trials else 0

    def _apply(self) -> None:
        """Have the workers go by the shares that are in force."""
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
        self._hands.tell(name)
        self._wake()

    # Following

    async def _follow(self) -> None:
        """What the leader says. Raises: StoreError."""
        for trial in self._trials.values():
            trial.told = (await self._home.kept(trial.name, ("told",))).get("told", {})

    # Ends

    async def _write_rules(self) -> None:
        """Have the rules say what a run has come to, so that it stays so. Each gateway has rules of its own."""
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
        """Or should wait whether another one does."""
        known = self._tried.get(name)
        if known is None or known.revision != revision:
            wait = 0.0 if self.is_leader else _WRITING_SECONDS
            known = self._tried[name] = _Writing(revision, self._clock() + wait)
        if known.is_done or self._clock() < known.due:
            return True
        known.is_done = True
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
        """Have a run changed by an operator, whichever gateway leads.

        Raises: KeyError where there is none, CommandRefused, StoreError.
        """
        async with self._one_at_a_time:
            trial = self._trials[name]
            for _ in range(3):  # somebody may have been quicker
                found = await self._home.beat(self._said)
                self._adopt(found)
                if trial.state is None or not trial.is_in_force:
                    raise commands.CommandRefused("its rules have just changed: ask again in a moment")
                state = change(trial, trial.state, found.now)
                if await self._changes.put(trial, state, action, found.now):
                    _log.info("experiment '%s': %s by %s%s", name, action, by, f" ({reason})" if reason else "")
                    return self.told_one(name)
            raise StoreError("others change this experiment at the same time: ask again")

    async def roll_back_anyway(self, name: str, by: str, reason: str) -> Json:
        """Roll back here while Redis is away; others follow when it is back.

        Raises: KeyError, CommandRefused.
        """
        async with self._one_at_a_time:
            trial = self._trials[name]
            if not trial.is_live:
                raise commands.CommandRefused("what all gateways share cannot be reached, and nothing runs here")
            self._roll_back_here(trial, by, reason, {})
            return self.told_one(name)

    # Telling

    @property
    def is_leader(self) -> bool:
        return self._lead.token is not None

    def facts(self) -> dict[str, RunFacts]:
        """What is in force here, by experiment; of those that are known by now."""
        return {
            name: RunFacts(trial.state.status.value, trial.state.step, trial.state.in_force)
            for name, trial in self._trials.items()
            if trial.state is not None and trial.is_in_force
        }

    def told(self) -> list[Json]:
        """What is known of each experiment."""
        return [self.told_one(name) for name in self._trials]

    def told_one(self, name: str) -> Json:
        """Raises: KeyError."""
        trial = self._trials[name]
        told = told_of(trial)
        judged = {} if self.is_leader else _judged(trial.told)
        if trial.state is None and self._leader and not self.is_leader:
            judged = {"next": f"{self._leader} leads, and its rules have no such experiment"}
        return {**told, **judged, "leader": self._leader, "is_away": self._is_away}

    async def history(self, name: str, since: float = 0.0) -> list[Json]:
        """Points for charts; while Redis is away those that this gateway has taken itself. Raises: KeyError."""
        trial = self._trials[name]
        if not self.is_leader:
            with suppress(StoreError):
                kept = await self._home.kept(name, ("series", "tail"))
                return TimeSeries([*kept.get("series", []), *kept.get("tail", [])]).since(since)
        return trial.series.since(since)

    async def decisions(self, limit: int) -> Sequence[Json]:
        """The newest first. Raises: StoreError."""
        return await self._home.decisions(limit)

    async def record(self, name: str, action: str, by: str, reason: str, numbers: Json) -> None:
        """Raises: StoreError."""
        told = {"time": time.time(), "experiment": name, "action": action, "by": by, "reason": reason}
        await self._home.record({**told, "numbers": numbers})


def _judged(told: Json) -> Json:
    """What only the leader knows."""
    return {name: told[name] for name in ("arms", "comparisons", "guardrails", "sample_ratio", "next") if name in told}
