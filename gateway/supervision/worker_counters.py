"""The sum of all workers' counters, including those of dead workers: totals never decrease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gateway.control.channel import ChildProcess
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.metrics import CountersSnapshot, SeriesKey, SeriesSnapshot, add_up
from gateway.observability.stats import LimitSnapshot, SessionUse, StoreUse, add_up_limits, total, without_worker
from gateway.protocol.engine_load import Load
from gateway.statistics.metrics import add


class Tally:
    """The last snapshot of each living worker, and the sum of the others."""

    def __init__(self) -> None:
        self._living: dict[ChildProcess, CountersSnapshot] = {}
        self._retired: dict[SeriesKey, SeriesSnapshot] = {}
        self._retired_store: StoreUse | None = None
        self._retired_sessions: SessionUse | None = None
        self._retired_limits: dict[str, LimitSnapshot] = {}
        self._retired_arms: dict[ArmKey, ArmCounts] = {}
        self._retired_captures: Counter[tuple[str, str]] = Counter()

    def __repr__(self) -> str:
        return f"<Tally of {len(self._living)} workers>"

    def take(self, worker: ChildProcess, snapshot: CountersSnapshot) -> None:
        self._living[worker] = snapshot

    def retire(self, worker: ChildProcess) -> None:
        """A worker has ended: keep its counts, drop its requests under way."""
        last = self._living.pop(worker, None)
        if last is not None:
            ended = [replace(series, in_flight=0) for series in last.series]
            self._retired = add_up([list(self._retired.values()), ended])
            self._retired_store = total([self._retired_store, last.store.ended if last.store else None])
            self._retired_sessions = total([self._retired_sessions, last.sessions.ended if last.sessions else None])
            self._retired_arms = _add_up_arms([self._retired_arms.values(), last.arms])
            self._retired_captures.update(last.captures)
            self._retired_limits = add_up_limits([self._retired_limits.values(), map(without_worker, last.limits)])

    def series(self) -> dict[SeriesKey, SeriesSnapshot]:
        return add_up([list(self._retired.values()), *[snapshot.series for snapshot in self._living.values()]])

    def sessions(self) -> SessionUse | None:
        """None where no worker has reported."""
        return total([self._retired_sessions, *[snapshot.sessions for snapshot in self._living.values()]])

    def store(self) -> StoreUse | None:
        """The use of Redis; None where there is none."""
        return total([self._retired_store, *[snapshot.store for snapshot in self._living.values()]])

    def limits(self) -> dict[str, LimitSnapshot]:
        """By name."""
        living = [snapshot.limits for snapshot in self._living.values()]
        return add_up_limits([self._retired_limits.values(), *living])

    def arms(self) -> dict[ArmKey, ArmCounts]:
        """By arm of the experiments."""
        return _add_up_arms([self._retired_arms.values(), *[snapshot.arms for snapshot in self._living.values()]])

    def captures(self) -> Counter[tuple[str, str]]:
        """Requests of mirrored routes, by route, and "captured" or the reason why not."""
        return sum((Counter(snapshot.captures) for snapshot in self._living.values()), self._retired_captures.copy())

    @property
    def connections(self) -> int:
        return sum(snapshot.connections for snapshot in self._living.values())

    def descriptors(self) -> dict[int, tuple[int, int]]:
        """By a worker's process id: its open file descriptors, and their limit."""
        return {worker.pid: snapshot.descriptors for worker, snapshot in self._living.items()}

    def breakers_open(self) -> dict[tuple[str, str], bool]:
        """By engine and endpoint, whether the breaker of some worker is open."""
        breakers: dict[tuple[str, str], bool] = {}
        for snapshot in self._living.values():
            for key, is_open in snapshot.breakers_open.items():
                breakers[key] = breakers.get(key, False) or is_open
        return breakers

    def loads(self) -> dict[tuple[str, str], Load]:
        """By engine and endpoint, the last load that its replies reported to some worker."""
        loads: dict[tuple[str, str], Load] = {}
        for snapshot in self._living.values():
            loads |= snapshot.loads
        return loads


def _add_up_arms(counted: Iterable[Iterable[ArmCounts]]) -> dict[ArmKey, ArmCounts]:
    parts: dict[ArmKey, list[ArmCounts]] = {}
    for counts in counted:
        for each in counts:
            parts.setdefault(each.key, []).append(each)
    return {key: add(*each) for key, each in parts.items()}
