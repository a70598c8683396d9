"""Where runs are kept, and who leads: what all gateways of one Redis share, or one without it has for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.experiments.runs import RunState

Json = dict[str, Any]

# Of decisions; the oldest go first.
MAX_DECISIONS = 1000


@dataclass(frozen=True, slots=True)
class Word:
    """What a gateway told last of its counts, and how many seconds ago. Per experiment: its `turn`, and its `arms`."""

    age: float
    experiments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class CoordinationState:
    """The answer to a beat. `token` is this gateway's leadership, None where another leads; only a leader is told the
    words of all gateways, its own among them."""

    now: float  # by the clock that all share, seconds since 1970
    states: Mapping[str, RunState]
    token: int | None = None
    leader: str = ""
    words: Mapping[str, Word] = field(default_factory=dict)


class Coordination(Protocol):
    """All may raise StoreError where the place cannot be reached."""

    me: str  # this gateway, in this life

    async def beat(self, experiments: Mapping[str, Json]) -> CoordinationState:
        """Say what was counted here, stay or become leader, and learn what all share."""
        ...

    async def change(
        self, name: str, state: RunState | None, before: int, decision: Json | None, token: int | None
    ) -> bool:
        """Put a state in the place of the one with revision `before` (0: of none), and record why; None removes it.

        False where that is not the one there, or `token` no longer leads.
        """
        ...

    async def record(self, decision: Json) -> None: ...

    async def decisions(self, limit: int) -> list[Json]:
        """The newest first."""
        ...

    async def keep(self, name: str, parts: Mapping[str, Json | list[Json]], token: int, *, is_new: bool) -> None:
        """Keep parts of an experiment's evidence, each by its name; `is_new` drops all others."""
        ...

    async def kept(self, name: str, parts: Sequence[str] = ()) -> dict[str, Any]:
        """Those parts, or all."""
        ...

    async def close(self) -> None: ...
