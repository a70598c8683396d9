"""The work of the leading gateway: collects all gateways' counts, evaluates them, and advances each run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.experiments import runs
from gateway.experiments.coordination import Coordination, CoordinationState, Json
from gateway.experiments.evidence import MAX_PERIODS, Evidence, TimeSeries
from gateway.experiments.experiment_state import ExperimentState
from gateway.experiments.ramp_policy import RampAction, RampVerb, is_due, update_shares
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


_log = logging.getLogger("pointsman")

# One evaluation takes tens of milliseconds. After this many seconds the remaining experiments wait for the next beat,
# so that fuses are checked in between; none is evaluated twice before all others.
_JUDGING_SECONDS = 0.3
# New points stored beside the series before the whole series is rewritten.
_MAX_TAIL = 12


class Leader:
    """`token` is this gateway's fencing token, None while another gateway leads; `changed` is called with the name of
    each experiment whose state was committed."""

    def __init__(
        self, coordination: Coordination, changed: Callable[[str], None], tick: float, clock: Callable[[], float]
    ) -> None:
        self._coordination = coordination
        self._changed = changed
        self._tick = tick
        self._clock = clock
        self.token: int | None = None

    async def lead(self, experiments: Mapping[str, ExperimentState], shared: CoordinationState) -> None:
        """Process all experiments, and evaluate those that are due.

        Raises: StoreError.
        """
        if self.token != shared.token:
            _log.info("this gateway leads the experiments (%s)", self._coordination.me)
            for experiment in experiments.values():
                experiment.has_read = False
        self.token = shared.token
        reported = {name for report in shared.reports.values() for name in report.experiments}
        for name in shared.states.keys() - experiments.keys() - reported:
            await self._forget(name, shared.states[name], shared.now)
        until = time.monotonic() + _JUDGING_SECONDS
        for experiment in sorted(
            experiments.values(), key=lambda experiment: (not experiment.is_live, experiment.judged_at)
        ):
            is_tick = self._clock() - experiment.judged_at >= self._tick and time.monotonic() < until
            try:
                await self._lead(experiment, shared, is_tick)
            except StoreError:
                raise
            except Exception:  # a bug in one must not stop the others
                _log.exception("experiment '%s' could not be evaluated", experiment.name)

    async def _lead(self, experiment: ExperimentState, shared: CoordinationState, is_tick: bool) -> None:
        await self._put_back(experiment, shared.states.get(experiment.name))
        await self._follow_rules(experiment, shared.now)
        if experiment.active is None:
            return
        if not experiment.has_read:
            await self._restore(experiment)
        experiment.take(shared.reports, shared.now)
        if not is_tick:
            await self._act(experiment, experiment.fuse_action(shared.now), shared.now)
            return
        experiment.judged_at = self._clock()
        await self._act(experiment, await asyncio.to_thread(experiment.judge, shared.now), shared.now)
        await self._report_mismatch(experiment, shared.now)
        await self._move(experiment, shared.now)
        await self._keep_evidence(experiment, shared.now)

    async def commit(
        self,
        experiment: ExperimentState,
        state: RunState,
        action: str | None,
        now: float,
        as_recorded: RunState | None = None,
        *,
        by_operator: bool = False,
    ) -> bool:
        """Commit a state; an operator's needs no leadership. Returns False if another gateway was faster.

        Without an `action` nothing is recorded; `as_recorded` replaces the new state in the record. Raises: StoreError.
        """
        state = replace(state, weights=weights_of(experiment.spec))
        before = experiment.state.revision if experiment.state is not None else 0
        why = None
        if action is not None:
            why = decision(experiment.name, action, as_recorded or state, evidence_json(experiment), now)
        if not await self._coordination.change(
            experiment.name, state, before, why, None if by_operator else self.token
        ):
            return False
        experiment.adopt(state)
        self._changed(experiment.name)
        return True

    # Shared states and the rules

    async def _put_back(self, experiment: ExperimentState, there: RunState | None) -> None:
        """Restore a state that Redis has lost."""
        before, state = there.revision if there is not None else 0, experiment.state
        if state is not None and before < state.revision:
            await self._coordination.change(experiment.name, state, before, None, self.token)
            experiment.stored_periods = set()

    async def _forget(self, name: str, state: RunState, now: float) -> None:
        """Remove an experiment that no rules contain any more."""
        ended = runs.changed(state, RunStatus.STOPPED, now, "rules", "the rules have no such experiment any more", {})
        await self._coordination.change(
            name, None, state.revision, decision(name, "stopped", ended, {}, now), self.token
        )

    async def _follow_rules(self, experiment: ExperimentState, now: float) -> None:
        """Make the run match the current rules."""
        state, fresh = experiment.state, experiment.declared.fresh()
        if state is None:
            begun = runs.begin(experiment.spec, None, fresh, now)
            await self.commit(experiment, begun, "started" if begun.status.is_live else None, now)
        elif experiment.active is None:
            ended = replace(state, by="rules", reason="the rules of the experiment have changed")
            begun = runs.begin(experiment.spec, state, fresh, now)
            is_put = await self.commit(experiment, begun, "stopped" if state.status.is_live else None, now, ended)
            if is_put and begun.status.is_live:
                await self._coordination.record(decision(experiment.name, "started", begun, {}, now))
        elif not state.status.is_live and not are_same(weights_of(experiment.spec), state.weights):
            await self._take_weights(experiment, state, now)

    async def _take_weights(self, experiment: ExperimentState, state: RunState, now: float) -> None:
        """Use the rules' weights while nothing runs; after an end, once they have changed."""
        if not state.shares:
            counted = replace(state, revision=state.revision + 1, turn=state.turn + 1, run=state.run + 1)
            await self.commit(experiment, counted, None, now)
        elif not are_same(weights_of(experiment.spec), state.shares):
            idle = runs.changed(state, RunStatus.IDLE, now, "rules", "the rules have new weights", {})
            await self.commit(experiment, replace(idle, step=0), "idle", now)

    # Evidence

    async def _restore(self, experiment: ExperimentState) -> None:
        """Load the stored evidence."""
        stored = await self._coordination.load(experiment.name)
        experiment.has_read = True
        if stored.get("run") != {"run": experiment.adopted.run}:
            return
        periods = [part for name, part in stored.items() if name.startswith("period:")]
        try:
            series = TimeSeries([*stored.get("series", []), *stored.get("tail", [])])
            experiment.restore(Evidence.read(experiment.name, periods), series)
            experiment.tail = stored.get("tail", [])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("the evidence of experiment '%s' cannot be read, and begins anew: %r", experiment.name, error)

    async def _keep_evidence(self, experiment: ExperimentState, now: float) -> None:
        """Store the evidence for the next leader and for the other gateways' reports."""
        assert self.token is not None
        state = experiment.adopted
        stored_at = (state.revision, experiment.evidence.revision, experiment.action.reason)
        if experiment.stored_periods and stored_at == experiment.stored_at:
            return  # nothing is new
        experiment.stored_at = stored_at
        point = chart_point_json(experiment, now)
        experiment.series.add(point)
        experiment.tail.append(point)
        is_new = not experiment.stored_periods
        if is_new or len(experiment.tail) > _MAX_TAIL:
            experiment.tail = []
        parts: dict[str, Any] = {
            "run": {"run": state.run},
            "told": experiment_json(experiment),
            "tail": experiment.tail,
        }
        if not experiment.tail:
            parts["series"] = experiment.series.since()
        for number in experiment.evidence.numbers:
            if number not in experiment.stored_periods:
                parts[f"period:{number % (2 * MAX_PERIODS)}"] = experiment.evidence.write(number)
        await self._coordination.save(experiment.name, parts, self.token, is_new=is_new)
        experiment.stored_periods = {0, *experiment.evidence.numbers[:-1]}

    # Acting

    async def _act(self, experiment: ExperimentState, action: RampAction, now: float) -> None:
        state, reason = experiment.adopted, action.reason
        match action.verb:
            case RampVerb.ROLL_BACK:
                done, what = runs.roll_back(experiment.spec, state, now, ITSELF, reason), "rolled_back"
            case RampVerb.ADVANCE:
                done, what = runs.go_to(experiment.spec, state, now, ITSELF, reason, state.step + 1), "advanced"
            case RampVerb.FINISH:
                done, what = runs.finish(state, now, ITSELF, reason), "finished"
            case RampVerb.WAIT | RampVerb.REST:
                return
        if await self.commit(experiment, done, what, now):
            _log.log(
                logging.WARNING if action.verb is RampVerb.ROLL_BACK else logging.INFO,
                "experiment '%s' is %s: %s",
                *(experiment.name, what.replace("_", " "), reason),
            )

    async def _report_mismatch(self, experiment: ExperimentState, now: float) -> None:
        """Record a sample-ratio mismatch once per run, because it stops the ramp."""
        mismatch = experiment.evaluation.mismatch if experiment.evaluation is not None else ""
        if (
            mismatch
            and experiment.state is not None
            and experiment.state.status.is_live
            and not experiment.has_reported_mismatch
        ):
            experiment.has_reported_mismatch = True
            _log.warning("units of experiment '%s' do not fall as they should: %s", experiment.name, mismatch)
            as_recorded = replace(experiment.state, by=ITSELF, reason=mismatch)
            await self._coordination.record(
                decision(experiment.name, "mismatch", as_recorded, evidence_json(experiment), now)
            )

    async def _move(self, experiment: ExperimentState, now: float) -> None:
        """Let a bandit move its weights when it is due."""
        state, bandit = experiment.adopted, experiment.spec.bandit
        if bandit is None or not is_due(bandit, state, now, experiment.bandit_updated_at):
            return
        experiment.bandit_updated_at = now
        update = update_shares(experiment.spec, bandit, state, experiment.evidence, now)
        if update is not None:
            shares, reason = update
            moved = runs.changed(state, RunStatus.RUNNING, now, "the bandit", reason, shares)
            await self.commit(experiment, moved, "moved", now)
