"""The work of the leading gateway: collects all gateways' counts, evaluates them, and advances each run."""

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
from gateway.experiments.ramp_policy import Action, RampVerb, is_due, update_shares
from gateway.experiments.runs import ITSELF, RunState, RunStatus, are_same, weights_of
from gateway.experiments.serialization import chart_point_json, evidence_json, experiment_json
from gateway.redis.command import StoreError


def decision(name: str, action: str, state: RunState, numbers: Json, now: float) -> Json:
    """One entry of the decision record."""
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


class StateCommits:
    """Commits states of runs; `changed` is called with the name of each experiment whose state was committed."""

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
        as_recorded: RunState | None = None,
    ) -> bool:
        """Commit a state. Returns False if another gateway was faster. Without an `action` nothing is recorded;
        `as_recorded` replaces the new state in the record.

        Raises: StoreError.
        """
        state = replace(state, weights=weights_of(trial.spec))
        before = trial.state.revision if trial.state is not None else 0
        why = (
            decision(trial.name, action, as_recorded or state, evidence_json(trial), now)
            if action is not None
            else None
        )
        if not await self._home.change(trial.name, state, before, why, token):
            return False
        trial.adopt(state)
        self._changed(trial.name)
        return True


_log = logging.getLogger("pointsman")

# One evaluation takes tens of milliseconds. After this many seconds the remaining experiments wait for the next beat,
# so that fuses are checked in between; none is evaluated twice before all others.
_JUDGING_SECONDS = 0.3
# New points stored beside the series before the whole series is rewritten.
_MAX_TAIL = 12


class Leader:
    """`token` is this gateway's fencing token, None while another gateway leads."""

    def __init__(self, home: Coordination, changes: StateCommits, tick: float, clock: Callable[[], float]) -> None:
        self._home = home
        self._changes = changes
        self._tick = tick
        self._clock = clock
        self.token: int | None = None

    def __repr__(self) -> str:
        return f"<Leader {self._home.me}: {'follows' if self.token is None else f'leads as {self.token}'}>"

    async def lead(self, trials: Mapping[str, ExperimentState], shared: CoordinationState) -> None:
        """Process all experiments, and evaluate those that are due.

        Raises: StoreError.
        """
        if self.token != shared.token:
            _log.info("this gateway leads the experiments (%s)", self._home.me)
            for trial in trials.values():
                trial.has_read = False
        self.token = shared.token
        reported = {name for report in shared.reports.values() for name in report.experiments}
        for name in shared.states.keys() - trials.keys() - reported:
            await self._forget(name, shared.states[name], shared.now)
        until = time.monotonic() + _JUDGING_SECONDS
        for trial in sorted(trials.values(), key=lambda trial: (not trial.is_live, trial.judged_at)):
            is_tick = self._clock() - trial.judged_at >= self._tick and time.monotonic() < until
            try:
                await self._lead(trial, shared, is_tick)
            except StoreError:
                raise
            except Exception:  # a bug in one must not stop the others
                _log.exception("experiment '%s' could not be evaluated", trial.name)

    async def _lead(self, trial: ExperimentState, shared: CoordinationState, is_tick: bool) -> None:
        await self._put_back(trial, shared.states.get(trial.name))
        await self._follow_rules(trial, shared.now)
        if trial.state is None or not trial.is_in_force:
            return
        if not trial.has_read:
            await self._restore(trial)
        trial.take(shared.reports, shared.now)
        if not is_tick:
            await self._act(trial, trial.fuse_action(shared.now), shared.now)
            return
        trial.judged_at = self._clock()
        await self._act(trial, await asyncio.to_thread(trial.judge, shared.now), shared.now)
        await self._report_mismatch(trial, shared.now)
        await self._move(trial, shared.now)
        await self._keep_evidence(trial, shared.now)

    async def _put(
        self,
        trial: ExperimentState,
        state: RunState,
        action: str | None,
        now: float,
        as_recorded: RunState | None = None,
    ) -> bool:
        return await self._changes.put(trial, state, action, now, token=self.token, as_recorded=as_recorded)

    # Shared states and the rules

    async def _put_back(self, trial: ExperimentState, there: RunState | None) -> None:
        """Restore a state that Redis has lost."""
        before, state = there.revision if there is not None else 0, trial.state
        if state is not None and before < state.revision:
            await self._home.change(trial.name, state, before, None, self.token)
            trial.stored_periods = set()

    async def _forget(self, name: str, state: RunState, now: float) -> None:
        """Remove an experiment that no rules contain any more."""
        ended = commands.changed(
            state, RunStatus.STOPPED, now, "rules", "the rules have no such experiment any more", {}
        )
        await self._home.change(name, None, state.revision, decision(name, "stopped", ended, {}, now), self.token)

    async def _follow_rules(self, trial: ExperimentState, now: float) -> None:
        """Make the run match the current rules."""
        state, fresh = trial.state, trial.declared.fresh()
        if state is None:
            begun = commands.begin(trial.spec, None, fresh, now)
            await self._put(trial, begun, "started" if begun.status.is_live else None, now)
        elif not trial.is_in_force:
            ended = replace(state, by="rules", reason="the rules of the experiment have changed")
            begun = commands.begin(trial.spec, state, fresh, now)
            is_put = await self._put(trial, begun, "stopped" if state.status.is_live else None, now, ended)
            if is_put and begun.status.is_live:
                await self._home.record(decision(trial.name, "started", begun, {}, now))
        elif not state.status.is_live and not are_same(weights_of(trial.spec), state.weights):
            await self._take_weights(trial, state, now)

    async def _take_weights(self, trial: ExperimentState, state: RunState, now: float) -> None:
        """Use the rules' weights while nothing runs; after an end, once they have changed."""
        if not state.shares:
            counted = replace(state, revision=state.revision + 1, turn=state.turn + 1, run=state.run + 1)
            await self._put(trial, counted, None, now)
        elif not are_same(weights_of(trial.spec), state.shares):
            idle = commands.changed(state, RunStatus.IDLE, now, "rules", "the rules have new weights", {})
            await self._put(trial, replace(idle, step=0), "idle", now)

    # Evidence

    async def _restore(self, trial: ExperimentState) -> None:
        """Load the stored evidence."""
        assert trial.state is not None
        stored = await self._home.load(trial.name)
        trial.has_read = True
        if stored.get("run") != {"run": trial.state.run}:
            return
        periods = [part for name, part in stored.items() if name.startswith("period:")]
        try:
            series = TimeSeries([*stored.get("series", []), *stored.get("tail", [])])
            trial.restore(Evidence.read(trial.name, periods), series)
            trial.tail = stored.get("tail", [])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("the evidence of experiment '%s' cannot be read, and begins anew: %r", trial.name, error)

    async def _keep_evidence(self, trial: ExperimentState, now: float) -> None:
        """Store the evidence for the next leader and for the other gateways' reports."""
        assert trial.state is not None and self.token is not None
        stored_at = (trial.state.revision, trial.evidence.revision, trial.action.reason)
        if trial.stored_periods and stored_at == trial.stored_at:
            return  # nothing is new
        trial.stored_at = stored_at
        point = chart_point_json(trial, now)
        trial.series.add(point)
        trial.tail.append(point)
        is_new = not trial.stored_periods
        if is_new or len(trial.tail) > _MAX_TAIL:
            trial.tail = []
        parts: dict[str, Any] = {"run": {"run": trial.state.run}, "told": experiment_json(trial), "tail": trial.tail}
        if not trial.tail:
            parts["series"] = trial.series.since()
        for number in trial.evidence.numbers:
            if number not in trial.stored_periods:
                parts[f"period:{number % (2 * MAX_PERIODS)}"] = trial.evidence.write(number)
        await self._home.save(trial.name, parts, self.token, is_new=is_new)
        trial.stored_periods = {0, *trial.evidence.numbers[:-1]}

    # Acting

    async def _act(self, trial: ExperimentState, action: Action, now: float) -> None:
        assert trial.state is not None
        state, reason = trial.state, action.reason
        match action.verb:
            case RampVerb.ROLL_BACK:
                done, what = commands.roll_back(trial.spec, state, now, ITSELF, reason), "rolled_back"
            case RampVerb.ADVANCE:
                done, what = commands.go_to(trial.spec, state, now, ITSELF, reason, state.step + 1), "advanced"
            case RampVerb.FINISH:
                done, what = commands.finish(state, now, ITSELF, reason), "finished"
            case RampVerb.WAIT | RampVerb.REST:
                return
        if await self._put(trial, done, what, now):
            _log.log(
                logging.WARNING if action.verb is RampVerb.ROLL_BACK else logging.INFO,
                "experiment '%s' is %s: %s",
                *(trial.name, what.replace("_", " "), reason),
            )

    async def _report_mismatch(self, trial: ExperimentState, now: float) -> None:
        """Record a sample-ratio mismatch once per run, because it stops the ramp."""
        mismatch = trial.evaluation.mismatch if trial.evaluation is not None else ""
        if mismatch and trial.state is not None and trial.state.status.is_live and not trial.has_reported_mismatch:
            trial.has_reported_mismatch = True
            _log.warning("units of experiment '%s' do not fall as they should: %s", trial.name, mismatch)
            as_recorded = replace(trial.state, by=ITSELF, reason=mismatch)
            await self._home.record(decision(trial.name, "mismatch", as_recorded, evidence_json(trial), now))

    async def _move(self, trial: ExperimentState, now: float) -> None:
        """Let a bandit move its weights when it is due."""
        state, bandit = trial.state, trial.spec.bandit
        assert state is not None
        if bandit is None or not is_due(bandit, state, now, trial.bandit_updated_at):
            return
        trial.bandit_updated_at = now
        update = update_shares(trial.spec, bandit, state, trial.evidence, now)
        if update.shares is not None:
            moved = commands.changed(state, RunStatus.RUNNING, now, "the bandit", update.reason, update.shares)
            await self._put(trial, moved, "moved", now)
