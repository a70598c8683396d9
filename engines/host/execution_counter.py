"""An instance whose executions are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engines.core.calls import InferenceCall
from engines.host.statistics import Statistics
from engines.scheduling.interfaces import Instance


class CountedInstance:
    """An instance as its scheduler sees it."""

    __slots__ = ("_inner", "_statistics")

    def __init__(self, inner: Instance, statistics: Statistics) -> None:
        self._inner = inner
        self._statistics = statistics

    def __repr__(self) -> str:
        return f"<CountedInstance {self._inner!r}>"

    def __getattr__(self, name: str) -> Any:
        """What an instance tells beyond the contract: its device."""
        return getattr(self._inner, name)

    @property
    def device_id(self) -> int:
        """The device whose resources the rate limiter counts."""
        plan = getattr(self._inner, "plan", None)
        return 0 if plan is None else int(plan.device_id)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def is_available(self) -> bool:
        return self._inner.is_available

    def execute(self, calls: Sequence[InferenceCall], done: Callable[[], None]) -> None:
        first = calls[0]
        batch_size = first.batch_size if len(calls) == 1 else sum([call.batch_size for call in calls])

        def executed() -> None:
            self._statistics.batch_ended(batch_size, first)
            done()

        self._inner.execute(calls, executed)
