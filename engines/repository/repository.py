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
from engines.repository.poller import ModelRecord, Polled, RepositoryRoots
from engines.repository.sources import Override
from engines.repository.states import IndexEntry, Load, LoadedVersion, ModelState
from engines.repository.updates import Change, Updates

_log = logging.getLogger(__name__)

T = TypeVar("T")

EVERYTHING = "*"
DEFAULT_POLL_SECONDS = 15.0  # Triton's


class Mode(Enum):
    """`--model-control-mode`: NONE loads everything at the start; POLL reloads when files change; EXPLICIT loads on
    request."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


class Repository:
    """The models of some roots. `startup_models` are those that EXPLICIT loads at the start, ("*",) means all; `gpus`
    are the ids of the devices for instance groups; `auto_complete` allows models to complete configurations;
    `config_name` selects `configs/NAME.pbtxt` if a model has it.

    Its methods belong to one event loop. A cancelled caller does not interrupt a change in progress.
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
        gpus: Sequence[int] = (),
        config_name: str = "",
        auto_complete: bool = True,
        cache_directory: Path | None = None,
    ) -> None:
        self.mode = mode
        self._startup_models = tuple(startup_models)
        self._poll_seconds = poll_seconds
        self._roots = RepositoryRoots(
            roots, config_name=config_name, may_complete=auto_complete, cache_directory=cache_directory
        )
        self._lifecycle = Lifecycle(load, gpus=gpus, max_concurrent_loads=max_concurrent_loads)
        self._updates = Updates(self._lifecycle)
        self._problems: dict[str, str] = {}  # of models that could not be read, why
        self._operations: set[asyncio.Task[Any]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._is_started = self._is_closing = False

    async def start(self) -> dict[str, str]:
        """Load the models of the mode. Returns the reasons of failures by model; the others serve. Raises: EngineError
        if a root is not a directory or unreachable, or "*" is combined with names."""
        is_everything = self.mode is not Mode.EXPLICIT or EVERYTHING in self._startup_models
        if self.mode is Mode.EXPLICIT and is_everything and len(self._startup_models) > 1:
            raise invalid("Wildcard model name '*' must be the ONLY startup model if specified at all.")
        await asyncio.to_thread(self._roots.open)
        if is_everything:
            await self._operate(self._updates.apply(self._poll_everything))
        else:
            await self._operate(self._load_all(dict.fromkeys(self._startup_models, Override())))
        self._is_started = True
        if self.mode is Mode.POLL:
            self._polling = asyncio.get_running_loop().create_task(self._poll_on())
        return self.failures

    def get(self, name: str, version: str = "") -> LoadedVersion:
        """The model that serves; the latest ready version by default. Raises: EngineError with Triton's text."""
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
        """The reasons why models do not serve as the repository has them, by name; more than Triton's index."""
        failures = dict(self._problems)
        for name, record in self._updates.records.items():
            if text := record.problem or record.error:
                failures.setdefault(name, text)
        return dict(sorted(failures.items()))

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """The models of all roots, by name, with the versions that were ever loaded. Raises: EngineError if a root
        cannot be read."""
        entries = []
        for name, directories in self._roots.directories().items():
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
        """Load a model, or reload it if it has changed, with the models that it needs (an ensemble's).

        `config` is a configuration as JSON that holds until the model is unloaded; with `files`, by their paths in the
        model's directory ("file:1/model.py"), the model consists of the request's contents alone. Raises: EngineError
        with Triton's text; the previous versions go on serving.
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
        """Unload a model and the ensembles that need it; an unknown one is ignored.

        `unload_dependents`: also the models that were only loaded for this ensemble. It does not wait for requests in
        progress, nor does a load of the model. Raises: EngineError if the mode does not allow it.
        """
        self._check_mode()

        async def look(records: Mapping[str, ModelRecord]) -> Change:
            removed = {name} & records.keys()
            if unload_dependents and removed:
                removed = _with_needless(name, records)
            return Change(removed=frozenset(removed))

        await self._operate(self._updates.apply(look))
        self._problems.pop(name, None)

    async def poll(self) -> None:
        """Poll the roots once: load new and changed models, unload removed ones. Raises: EngineError if the mode is
        another one, or a root cannot be read."""
        if self.mode is not Mode.POLL:
            raise unavailable("polling is disabled")
        await self._operate(self._updates.apply(self._poll_everything))

    async def close(self) -> None:
        """Unload everything and wait for it; loads in progress are cancelled."""
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
        """Run a change to its end, even if the caller is cancelled."""
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
        """Load models by name. Returns the reasons of failures, and whether all of them, and their needs, could be
        read."""
        polled = Polled()

        async def look(records: Mapping[str, ModelRecord]) -> Change:
            nonlocal polled
            polled = await asyncio.to_thread(self._roots.poll, wanted, records)
            return Change(polled.changed, unmodified=frozenset(polled.unmodified), explicit=frozenset(wanted))

        results = await self._updates.apply(look)
        self._note(polled)
        return results, not polled.problems

    async def _poll_everything(self, records: Mapping[str, ModelRecord]) -> Change:
        polled = await asyncio.to_thread(self._roots.poll_all, records)
        self._note(polled)
        there = polled.changed.keys() | polled.unmodified
        return Change(polled.changed, removed=frozenset(records.keys() - there), explicit=frozenset(polled.changed))

    def _note(self, polled: Polled) -> None:
        for name, text in polled.problems.items():
            if self._problems.get(name) != text:
                _log.error("failed to poll model '%s': %s", name, text)
        for name in polled.changed.keys() | polled.unmodified:
            self._problems.pop(name, None)
        # Requests may name anything: unknown names are not recorded.
        remembered = polled.problems.keys() - (polled.unknown if self._is_started else set())
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


def _with_needless(name: str, records: Mapping[str, ModelRecord]) -> set[str]:
    """An ensemble and the models that nothing else needs, except for explicitly loaded ones."""
    removed, waiting = {name}, [name]
    while waiting:
        for needed in steps(records[waiting.pop()].source.config):
            is_wanted = needed not in records or records[needed].is_explicit
            if needed in removed or is_wanted:
                continue
            if not any(needed in steps(records[other].source.config) for other in records.keys() - removed):
                removed.add(needed)
                waiting.append(needed)
    return removed
