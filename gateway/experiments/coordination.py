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

# The decisions that are kept; the oldest are dropped first.
MAX_DECISIONS = 1000
# A file of decisions with more lines is rewritten with the newest ones.
_MAX_LINES = 2 * MAX_DECISIONS


@dataclass(frozen=True, slots=True)
class CountReport:
    """A gateway's last report of its counts and its age in seconds. Per experiment: its `turn` and its `arms`."""

    age: float
    experiments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class CoordinationState:
    """The reply to a beat. `token` is this gateway's fencing token, None if another leads; only the leader receives the
    reports of all gateways."""

    now: float  # by the shared clock, seconds since 1970
    states: Mapping[str, RunState]
    token: int | None = None
    leader: str = ""
    reports: Mapping[str, CountReport] = field(default_factory=dict)


class Coordination(Protocol):
    """The shared state of experiments. All methods may raise StoreError."""

    me: str  # this process's name

    async def beat(self, experiments: Mapping[str, Json]) -> CoordinationState:
        """Report counts, acquire or renew the leadership, and read the shared states."""
        ...

    async def change(
        self, name: str, state: RunState | None, before: int, decision: Json | None, token: int | None
    ) -> bool:
        """Replace the state of revision `before` (0: none) and record the decision; None removes it.

        Returns False if the revision differs, or `token` no longer leads.
        """
        ...

    async def record(self, decision: Json) -> None: ...

    async def decisions(self, limit: int) -> list[Json]:
        """The last decisions, newest first."""
        ...

    async def save(self, name: str, parts: Mapping[str, Json | list[Json]], token: int, *, is_new: bool) -> None:
        """Store parts of an experiment's evidence by name; `is_new` drops all others."""
        ...

    async def load(self, name: str, parts: Sequence[str] = ()) -> dict[str, Any]:
        """Read those parts, or all."""
        ...

    async def close(self) -> None: ...


class LocalCoordination:
    """The coordination of a single gateway, which always leads: files in `folder`, or only in memory if None."""

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

    async def beat(self, experiments: Mapping[str, Json]) -> CoordinationState:
        return CoordinationState(
            self._clock(), dict(self._states), 1, self.me, {self.me: CountReport(0.0, experiments)}
        )

    async def change(
        self, name: str, state: RunState | None, before: int, decision: Json | None, token: int | None
    ) -> bool:
        stored = self._states.get(name)
        if (stored.revision if stored is not None else 0) != before:
            return False
        if state is None:
            self._states.pop(name, None)
            self._parts.pop(name, None)
        else:
            self._states[name] = state
        self._write("states.json", {each: asdict(state) for each, state in self._states.items()})
        if decision is not None:
            await self.record(decision)
        return True

    async def record(self, decision: Json) -> None:
        self._decisions.append(decision)
        if self._num_lines >= _MAX_LINES:
            self._write("decisions.jsonl", *self._decisions)
            self._num_lines = len(self._decisions)
        else:
            self._write("decisions.jsonl", decision, appends=True)
            self._num_lines += 1

    async def decisions(self, limit: int) -> list[Json]:
        return list(reversed(self._decisions))[:limit]

    async def save(self, name: str, parts: Mapping[str, Json | list[Json]], token: int, *, is_new: bool) -> None:
        stored = {} if is_new else self._parts.get(name, {})
        self._parts[name] = {**stored, **parts}
        self._write(f"evidence-{name}.json", self._parts[name])

    async def load(self, name: str, parts: Sequence[str] = ()) -> dict[str, Any]:
        state = self._parts.get(name, {})
        return {part: state[part] for part in parts or state if part in state}

    async def close(self) -> None:
        """Nothing is open."""

    # Files

    def _read(self, folder: Path) -> None:
        """Read the files of an earlier process; unreadable ones are ignored."""
        for name, data in _json(folder / "states.json").items():
            state = read_state(json.dumps(data))
            if state is not None:
                self._states[name] = state
                self._parts[name] = _json(folder / f"evidence-{name}.json")
        with suppress(OSError):
            for line in (folder / "decisions.jsonl").read_text(errors="replace").splitlines():
                self._num_lines += 1
                with suppress(ValueError):
                    decision = json.loads(line)
                    if isinstance(decision, dict):
                        self._decisions.append(decision)

    def _write(self, name: str, *lines: Any, appends: bool = False) -> None:
        """Replace a file atomically, or append to it."""
        if self._folder is None:
            return
        file, partial = self._folder / name, self._folder / f"{name}.partial"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with file.open("a") if appends else partial.open("w") as opened:
                opened.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            if not appends:
                partial.replace(file)
        except OSError as error:
            if not self._has_complained:
                _log.warning("what experiments decide is not kept over a restart: %s", error)
                self._has_complained = True


def _json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
