"""Where runs are stored and which gateway leads: the interface, and its form for a single gateway without Redis."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import time
from typing import Any, Protocol

from gateway.experiments.runs import RunState, read_state

_log = logging.getLogger("pointsman")

Json = dict[str, Any]

# Of decisions; the oldest go first.
MAX_DECISIONS = 1000
# Of a file of decisions: then the newest are written anew.
_MAX_LINES = 2 * MAX_DECISIONS


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


class LocalHome:
    """`folder` None: nothing outlives this process. It always leads."""

    me = "this gateway"

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time) -> None:
        self._folder = folder
        self._clock = clock
        self._states: dict[str, RunState] = {}
        self._parts: dict[str, dict[str, Any]] = {}
        self._decisions: deque[Json] = deque(maxlen=MAX_DECISIONS)
        self._num_lines = 0
        self._has_complained = False
        if folder is not None:
            self._read(folder)

    def __repr__(self) -> str:
        return f"<LocalHome {self._folder or 'in memory'}: {', '.join(self._states) or 'empty'}>"

    async def beat(self, experiments: Mapping[str, Json]) -> CoordinationState:
        return CoordinationState(self._clock(), dict(self._states), 1, self.me, {self.me: Word(0.0, experiments)})

    async def change(
        self, name: str, state: RunState | None, before: int, decision: Json | None, token: int | None
    ) -> bool:
        known = self._states.get(name)
        if (known.revision if known is not None else 0) != before:
            return False
        if state is None:
            self._states.pop(name, None)
            self._parts.pop(name, None)
        else:
            self._states[name] = state
        self._write("states.json", {each: asdict(known) for each, known in self._states.items()})
        if decision is not None:
            await self.record(decision)
        return True

    async def record(self, decision: Json) -> None:
        self._decisions.append(decision)
        if self._num_lines >= _MAX_LINES:
            self._write("decisions.jsonl", *self._decisions)
            self._num_lines = len(self._decisions)
        else:
            self._append(decision)
            self._num_lines += 1

    async def decisions(self, limit: int) -> list[Json]:
        return list(reversed(self._decisions))[:limit]

    async def keep(self, name: str, parts: Mapping[str, Json | list[Json]], token: int, *, is_new: bool) -> None:
        kept = {} if is_new else self._parts.get(name, {})
        self._parts[name] = {**kept, **parts}
        self._write(f"evidence-{name}.json", self._parts[name])

    async def kept(self, name: str, parts: Sequence[str] = ()) -> dict[str, Any]:
        known = self._parts.get(name, {})
        return {part: known[part] for part in parts or known if part in known}

    async def close(self) -> None:
        """Nothing is open."""

    # Files

    def _read(self, folder: Path) -> None:
        """What an earlier life left; what cannot be read is as good as nothing."""
        for name, told in (_json(folder / "states.json") or {}).items():
            state = read_state(json.dumps(told))
            if state is not None:
                self._states[name] = state
                self._parts[name] = _json(folder / f"evidence-{name}.json") or {}
        with suppress(OSError):
            for line in (folder / "decisions.jsonl").read_text(errors="replace").splitlines():
                self._num_lines += 1
                with suppress(ValueError):
                    decision = json.loads(line)
                    if isinstance(decision, dict):
                        self._decisions.append(decision)

    def _write(self, file: str, *told: Any) -> None:
        """Whole or not at all."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = self._folder / f"{file}.partial"
            partial.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in told))
            partial.replace(self._folder / file)
        except OSError as error:
            self._complain(error)

    def _append(self, decision: Json) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self._folder / "decisions.jsonl").open("a") as file:
                file.write(json.dumps(decision, separators=(",", ":")) + "\n")
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._has_complained:
            _log.warning("what experiments decide is not kept over a restart: %s", error)
            self._has_complained = True


def _json(file: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None
