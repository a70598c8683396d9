"""Putting one state of a run in the place of another, for all gateways, and recording why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.experiments.coordination import Coordination, Json
from gateway.experiments.experiment_state import ExperimentState
from gateway.experiments.runs import RunState, weights_of
from gateway.experiments.serialization import numbers_of


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
