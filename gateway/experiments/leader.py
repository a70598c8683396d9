"""What the one gateway that leads does for all: it gathers their counts, judges them, and has each run go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.experiments import commands
from gateway.experiments.coordination import Coordination, CoordinationState, Json
from gateway.experiments.evidence import MAX_PERIODS, Evidence, TimeSeries
from gateway.experiments.experiment_state import ExperimentState
from gateway.experiments.ramp_policy import Action, Verb, is_due, think
from gateway.experiments.runs import ITSELF, RunState, RunStatus, are_same, weights_of
from gateway.experiments.serialization import numbers_of, point_of, told_of
from gateway.redis.errors import StoreError


def decision(name: str, action: str, state: RunState, numbers: Json, now: float) -> Json:
    """One line of the record."""
    return {
        "time": round(now, 3),
        "experiment": name,
        "action": action,
        "by": state.by,
        "reason": state.reason,
        "status": state.status.value,
        "step": state.step,
        "shares": dict(state.in_force),
        "numbers": numbers,
    }


class Changes:
    """`changed` hears the name of an experiment whose state was put in force here."""

    def __init__(self, home: Coordination, changed: Callable[[str], None]) -> None:
        self._home = home
        self._changed = changed

    async def put(
        self,
        trial: ExperimentState,
        state: RunState,
        action: str | None,
        now: float,
        *,
        token: int | None = None,
        told: RunState | None = None,
    ) -> bool:
        """Put a state in force; tells whether it is: somebody may have been quicker. Without an `action` nothing is
        recorded; `told` is what the record says in place of the new state.

        Raises: StoreError.
        """
        state = replace(state, weights=weights_of(trial.spec))
        before = trial.state.revision if trial.state is not None else 0
        why = decision(trial.name, action, told or state, numbers_of(trial), now) if action is not None else None
        if not await self._home.change(trial.name, state, before, why, token):
            return False
        trial.adopt(state)
        self._changed(trial.name)
        return True


_log = logging.getLogger("pointsman")

# Judging one takes tens of milliseconds; after so many seconds of it the others wait for the next beat: fuses are
# looked at in between, and none is judged twice before all are.
_JUDGING_SECONDS = 0.3
# So many new points are kept beside the series before all of it is written anew.
_MAX_TAIL = 12


class Leader:
    """`token` is its leadership, None while another gateway leads."""

    def __init__(self, home: Coordination, changes: Changes, tick: float, clock: Callable[[], float]) -> None:
        self._home = home
        self._changes = changes
        self._tick = tick
        self._clock = clock
        self.token: int | None = None

    def __repr__(self) -> str:
        return f"<Leader {self._home.me}: {'follows' if self.token is None else f'leads as {self.token}'}>"

    async def lead(self, trials: Mapping[str, ExperimentState], found: CoordinationState) -> None:
        """Look at all, and judge those whose tick it is.

        Raises: StoreError.
        """
        if self.token != found.token:
            _log.info("this gateway leads the experiments (%s)", self._home.me)
            for trial in trials.values():
                trial.has_read = False
        self.token = found.token
        spoken_of = {name for word in found.words.values() for name in word.experiments}
        for name in found.states.keys() - trials.keys() - spoken_of:
            await self._forget(name, found.states[name], found.now)
        until = time.monotonic() + _JUDGING_SECONDS
        for trial in sorted(trials.values(), key=lambda trial: (not trial.is_live, trial.judged_at)):
            is_tick = self._clock() - trial.judged_at >= self._tick and time.monotonic() < until
            try:
                await self._lead(trial, found, is_tick)
            except StoreError:
                raise
            except Exception:  # a fault of ours in one must not leave the others alone
                _log.exception("experiment '%s' could not be looked at", trial.name)

    async def _lead(self, trial: ExperimentState, found: CoordinationState, is_tick: bool) -> None:
        await self._put_back(trial, found.states.get(trial.name))
        await self._keep_up(trial, found.now)
        if trial.state is None or not trial.is_in_force:
            return
        if not trial.has_read:
            await self._restore(trial)
        trial.take(found.words, found.now)
        if not is_tick:
            await self._act(trial, trial.fuse_action(found.now), found.now)
            return
        trial.judged_at = self._clock()
        await self._act(trial, await asyncio.to_thread(trial.judge, found.now), found.now)
        await self._tell_mismatch(trial, found.now)
        await self._move(trial, found.now)
        await self._keep_evidence(trial, found.now)

    async def _put(
        self, trial: ExperimentState, state: RunState, action: str | None, now: float, told: RunState | None = None
    ) -> bool:
        return await self._changes.put(trial, state, action, now, token=self.token, told=told)

    # What is shared, and what the rules say

    async def _put_back(self, trial: ExperimentState, there: RunState | None) -> None:
        """Have Redis know again what it has lost."""
        before, state = there.revision if there is not None else 0, trial.state
        if state is not None and before < state.revision:
            await self._home.change(trial.name, state, before, None, self.token)
            trial.kept = set()

    async def _forget(self, name: str, state: RunState, now: float) -> None:
        """The rules have no such experiment any more."""
        ended = commands.changed(
            state, RunStatus.STOPPED, now, "rules", "the rules have no such experiment any more", {}
        )
        await self._home.change(name, None, state.revision, decision(name, "stopped", ended, {}, now), self.token)

    async def _keep_up(self, trial: ExperimentState, now: float) -> None:
        """Have a run that the rules, as they are now, know."""
        state, fresh = trial.state, trial.declared.fresh()
        if state is None:
            begun = commands.begin_anew(trial.spec, None, fresh, now)
            await self._put(trial, begun, "started" if begun.status.is_live else None, now)
        elif not trial.is_in_force:
            ended = replace(state, by="rules", reason="the rules of the experiment have changed")
            begun = commands.begin_anew(trial.spec, state, fresh, now)
            is_put = await self._put(trial, begun, "stopped" if state.status.is_live else None, now, ended)
            if is_put and begun.status.is_live:
                await self._home.record(decision(trial.name, "started", begun, {}, now))
        elif not state.status.is_live and not are_same(weights_of(trial.spec), state.weights):
            await self._take_weights(trial, state, now)

    async def _take_weights(self, trial: ExperimentState, state: RunState, now: float) -> None:
        """The rules' weights count where nothing runs; after an end they count again when they say something new."""
        if not state.shares:
            counted = replace(state, revision=state.revision + 1, turn=state.turn + 1, run=state.run + 1)
            await self._put(trial, counted, None, now)
        elif not are_same(weights_of(trial.spec), state.shares):
            idle = commands.changed(state, RunStatus.IDLE, now, "rules", "the rules have new weights", {})
            await self._put(trial, replace(idle, step=0), "idle", now)

    # Evidence

    async def _restore(self, trial: ExperimentState) -> None:
        """Go on with the evidence that was kept."""
        assert trial.state is not None
        kept = await self._home.kept(trial.name)
        trial.has_read = True
        if kept.get("run") != {"run": trial.state.run}:
            return
        periods = [part for name, part in kept.items() if name.startswith("period:")]
        try:
            series = TimeSeries([*kept.get("series", []), *kept.get("tail", [])])
            trial.restore(Evidence.read(trial.name, periods), series)
            trial.tail = kept.get("tail", [])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("the evidence of experiment '%s' cannot be read, and begins anew: %r", trial.name, error)

    async def _keep_evidence(self, trial: ExperimentState, now: float) -> None:
        """Have a leader that comes after this one go on from here, and others tell what is known."""
        assert trial.state is not None and self.token is not None
        known = (trial.state.revision, trial.evidence.revision, trial.action.reason)
        if trial.kept and known == trial.known:
            return  # nothing is new
        trial.known = known
        point = point_of(trial, now)
        trial.series.add(point)
        trial.tail.append(point)
        is_new = not trial.kept
        if is_new or len(trial.tail) > _MAX_TAIL:
            trial.tail = []
        parts: dict[str, Any] = {"run": {"run": trial.state.run}, "told": told_of(trial), "tail": trial.tail}
        if not trial.tail:
            parts["series"] = trial.series.since()
        for number in trial.evidence.numbers:
            if number not in trial.kept:
                parts[f"period:{number % (2 * MAX_PERIODS)}"] = trial.evidence.write(number)
        await self._home.keep(trial.name, parts, self.token, is_new=is_new)
        trial.kept = {0, *trial.evidence.numbers[:-1]}

    # Acting

    async def _act(self, trial: ExperimentState, action: Action, now: float) -> None:
        assert trial.state is not None
        state, reason = trial.state, action.reason
        match action.verb:
            case Verb.ROLL_BACK:
                done, what = commands.roll_back(trial.spec, state, now, ITSELF, reason), "rolled_back"
            case Verb.ADVANCE:
                done, what = commands.go_to(trial.spec, state, now, ITSELF, reason, state.step + 1), "advanced"
            case Verb.FINISH:
                done, what = commands.finish(state, now, ITSELF, reason), "finished"
            case Verb.WAIT | Verb.REST:
                return
        if await self._put(trial, done, what, now):
            _log.log(
                logging.WARNING if action.verb is Verb.ROLL_BACK else logging.INFO,
                "experiment '%s' is %s: %s",
                *(trial.name, what.replace("_", " "), reason),
            )

    async def _tell_mismatch(self, trial: ExperimentState, now: float) -> None:
        """Once for each run: whoever looks at the record must see why a ramp stands still."""
        mismatch = trial.judgement.mismatch if trial.judgement is not None else ""
        if mismatch and trial.state is not None and trial.state.status.is_live and not trial.has_told_mismatch:
            trial.has_told_mismatch = True
            _log.warning("units of experiment '%s' do not fall as they should: %s", trial.name, mismatch)
            told = replace(trial.state, by=ITSELF, reason=mismatch)
            await self._home.record(decision(trial.name, "mismatch", told, numbers_of(trial), now))

    async def _move(self, trial: ExperimentState, now: float) -> None:
        """Have a bandit move its weights, where it is time."""
        state, bandit = trial.state, trial.spec.bandit
        assert state is not None
        if bandit is None or not is_due(bandit, state, now, trial.thought_at):
            return
        trial.thought_at = now
        thought = think(trial.spec, bandit, state, trial.evidence, now)
        if thought.shares is not None:
            moved = commands.changed(state, RunStatus.RUNNING, now, "the bandit", thought.reason, thought.shares)
            await self._put(trial, moved, "moved", now)
