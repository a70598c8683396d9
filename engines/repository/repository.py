"""A model repository: which models serve, and how that changes: at the start, by requests, or with the files.

Source: Triton's model management documentation and model repository extension; core `model_repository_manager.cc`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from engines.core.errors import EngineError, internal, invalid, unavailable
from engines.repository.ensembles import steps
from engines.repository.layout import DUPLICATE
from engines.repository.lifecycle import Lifecycle
from engines.repository.poller import Known, Polled, Shelf
from engines.repository.sources import Override
from engines.repository.states import IndexEntry, Load, LoadedVersion, ModelState
from engines.repository.updates import Change, Updates

_log = logging.getLogger(__name__)

T = TypeVar("T")

EVERYTHING = "*"
DEFAULT_POLL_SECONDS = 15.0  # Triton's


class Mode(Enum):
    """`--model-control-mode`: NONE loads everything at the start; POLL does so again whenever the files change;
    EXPLICIT loads what requests ask for."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


class Repository:
    """The models of some roots. `startup_models` are those that EXPLICIT loads at the start, ("*",) means all;
    `gpus` are the ids of the devices that instance groups may name; `auto_complete` says whether a configuration may
    leave out what the model tells; `config_name` chooses `configs/NAME.pbtxt` where a model has it.

    Its methods belong to one event loop. A caller that is cancelled leaves what it has begun to go on to its end.
    """

    def __init__(
        self,
        roots: Sequence[str | Path],
        load: Load,
        *,
        mode: Mode = Mode.NONE,
        startup_models: Sequence[str] = (),
        poll_seconds: float = DEFAULT_POLL_SECONDS,
        max_concurrent_loads: int = 4,
        load_retries: int = 0,
        gpus: Sequence[int] = (),
        config_name: str = "",
        auto_complete: bool = True,
        cache_directory: Path | None = None,
    ) -> None:
        self.mode = mode
        self._startup_models = tuple(startup_models)
        self._poll_seconds = poll_seconds
        self._shelf = Shelf(roots, config_name=config_name, may_complete=auto_complete, cache_directory=cache_directory)
        self._lifecycle = Lifecycle(
            load, gpus=gpus, max_concurrent_loads=max_concurrent_loads, load_retries=load_retries
        )
        self._updates = Updates(self._lifecycle)
        self._problems: dict[str, str] = {}  # of models that could not be read, why
        self._operations: set[asyncio.Task[Any]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._is_started = self._is_closing = False

    def __repr__(self) -> str:
        return f"<Repository {self.mode.value}: {len(self._updates.known)} models, {self._lifecycle!r}>"

    async def start(self) -> dict[str, str]:
        """Load what the mode says. Answers why models failed, by their names: the others serve.

        Raises: EngineError where a root is no directory or cannot be reached, or "*" is not alone.
        """
        is_everything = self.mode is not Mode.EXPLICIT or EVERYTHING in self._startup_models
        if self.mode is Mode.EXPLICIT and is_everything and len(self._startup_models) > 1:
            raise invalid("Wildcard model name '*' must be the ONLY startup model if specified at all.")
        await asyncio.to_thread(self._shelf.open)
        if is_everything:
            await self._operate(self._updates.apply(self._look_at_all))
        else:
            await self._operate(self._load_all(dict.fromkeys(self._startup_models, Override())))
        self._is_started = True
        if self.mode is Mode.POLL:
            self._polling = asyncio.get_running_loop().create_task(self._poll_on())
        return self.failures

    def get(self, name: str, version: str = "") -> LoadedVersion:
        """The model that answers; the latest ready version where none is named.

        Raises: EngineError in Triton's words.
        """
        return self._lifecycle.get(name, version)

    def ready_versions(self, name: str) -> list[int]:
        """The versions of a model that serve, in order."""
        return sorted(self._lifecycle.ready_versions(name))

    def ready_models(self) -> list[LoadedVersion]:
        """Every version that serves, by name and version."""
        return [
            version.model
            for name in sorted(self._lifecycle.names)
            for version in (self._lifecycle.versions(name) or {}).values()
            if version.is_ready and version.model is not None
        ]

    @property
    def is_ready(self) -> bool:
        """Whether all models serve that should: strict readiness."""
        return self._lifecycle.is_ready

    @property
    def failures(self) -> dict[str, str]:
        """Why models do not serve as the repository has them, by their names; more than Triton's index tells."""
        failures = dict(self._problems)
        for name, known in self._updates.known.items():
            if text := known.problem or known.error:
                failures.setdefault(name, text)
        return dict(sorted(failures.items()))

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """The models of all roots, by name, with the versions that were ever loaded.

        Raises: EngineError where a root cannot be read.
        """
        entries = []
        for name, directories in self._shelf.directories().items():
            versions = self._lifecycle.versions(name)
            if len(directories) > 1:
                entries.append(IndexEntry(name, state=ModelState.UNAVAILABLE.value, reason=DUPLICATE))
            elif versions is None:
                entries += [] if ready_only else [IndexEntry(name)]
            else:
                entries += [
                    IndexEntry(name, str(number), version.state.value, version.reason)
                    for number, version in versions.items()
                    if version.is_ready or not ready_only
                ]
        return entries

    async def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load a model, or load it anew where it has changed; what it needs (an ensemble's models) comes along.

        `config` is a configuration as JSON that counts until the model is unloaded; with `files`, by their paths in the
        model's directory ("file:1/model.py"), the model is made of what the request carries alone.
        Raises: EngineError in Triton's words; what served before goes on serving.
        """
        self._check_mode()
        results, are_read = await self._operate(self._load_all({name: Override(config, files or None)}))
        if (reason := results.get(name)) is not None:
            raise invalid(f"load failed for model '{name}': {reason}\n")
        if not are_read:
            raise internal(f"failed to load '{name}', failed to poll from model repository")
        if not self._lifecycle.versions(name):
            raise internal(f"failed to load '{name}', no version is available")

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Have a model serve no more, and the ensembles that need it; one that is not known does not matter.

        `unload_dependents`: the models too that were only loaded because this ensemble needs them. It does not wait for
        requests under way; a load of the model does not have to wait for them either.
        Raises: EngineError where the mode does not allow it.
        """
        self._check_mode()

        async def look(known: Mapping[str, Known]) -> Change:
            removed = {name} & known.keys()
            if unload_dependents and removed:
                removed = _with_needless(name, known)
            return Change(removed=frozenset(removed))

        await self._operate(self._updates.apply(look))
        self._problems.pop(name, None)

    async def poll(self) -> None:
        """Look at the roots once: load what is new or changed, unload what is gone.

        Raises: EngineError where the mode is another one, or a root cannot be read.
        """
        if self.mode is not Mode.POLL:
            raise unavailable("polling is disabled")
        await self._operate(self._updates.apply(self._look_at_all))

    async def close(self) -> None:
        """Unload everything and wait for it; loads under way are cancelled."""
        self._is_closing = True
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait({self._polling})
        for task in (going := set(self._operations)):
            task.cancel()
        if going:
            await asyncio.wait(going)
        self._updates.unload_all()
        await self._lifecycle.wait_for_unloads()

    def _check_mode(self) -> None:
        if self.mode is not Mode.EXPLICIT:
            raise unavailable("explicit model load / unload is not allowed if polling is enabled")

    async def _operate(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run something that changes models to its end, whatever becomes of the caller."""
        if self._is_closing:
            operation.close()
            raise unavailable("Server exiting")
        task = asyncio.get_running_loop().create_task(operation)
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._is_closing:
                raise unavailable("Server exiting") from None
            raise

    async def _load_all(self, wanted: Mapping[str, Override]) -> tuple[dict[str, str | None], bool]:
        """Load models by name. Answers why each failed, and whether all of them, and what they need, could be read."""
        polled = Polled()

        async def look(known: Mapping[str, Known]) -> Change:
            nonlocal polled
            polled = await asyncio.to_thread(self._shelf.poll, wanted, known)
            return Change(polled.changed, unmodified=frozenset(polled.unmodified), explicit=frozenset(wanted))

        results = await self._updates.apply(look)
        self._note(polled)
        return results, not polled.problems

    async def _look_at_all(self, known: Mapping[str, Known]) -> Change:
        polled = await asyncio.to_thread(self._shelf.poll_all, known)
        self._note(polled)
        there = polled.changed.keys() | polled.unmodified
        return Change(polled.changed, removed=frozenset(known.keys() - there), explicit=frozenset(polled.changed))

    def _note(self, polled: Polled) -> None:
        for name, text in polled.problems.items():
            if self._problems.get(name) != text:
                _log.error("failed to poll model '%s': %s", name, text)
        for name in polled.changed.keys() | polled.unmodified:
            self._problems.pop(name, None)
        # Requests may ask for any name: what they make up is not remembered.
        remembered = polled.problems.keys() - (polled.strangers if self._is_started else set())
        self._problems |= {name: polled.problems[name] for name in remembered}

    async def _poll_on(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self.poll()
            except EngineError as error:
                _log.error("failed to poll the model repository: %s", error.message)
            except Exception:  # the next one may do better
                _log.exception("failed to poll the model repository")


def _with_needless(name: str, known: Mapping[str, Known]) -> set[str]:
    """An ensemble and what it needs and nobody else does, but for what was loaded by its own name."""
    removed, waiting = {name}, [name]
    while waiting:
        for needed in steps(known[waiting.pop()].source.config):
            is_wanted = needed not in known or known[needed].is_explicit
            if needed in removed or is_wanted:
                continue
            if not any(needed in steps(known[other].source.config) for other in known.keys() - removed):
                removed.add(needed)
                waiting.append(needed)
    return removed
