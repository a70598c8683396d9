"""Changes of the loaded models, one at a time for a model and those that depend on it, in parallel for others.

Source: Triton core `model_repository_manager.cc` LoadUnloadModels, LoadModelByDependency, CheckNode.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from engines.core.errors import EngineError
from engines.repository.config.parser import ConfigError
from engines.repository.ensembles import check_mapping, dependents, problem, steps
from engines.repository.lifecycle import Lifecycle
from engines.repository.poller import ModelRecord
from engines.repository.sources import VersionSource
from gateway.protocol.protobuf import Message


@dataclass(frozen=True, slots=True)
class Change:
    """`changed` are loaded, `removed` unloaded and forgotten, `unmodified` only held. `explicit`: models that were
    requested by name, not because an ensemble needs them."""

    changed: Mapping[str, VersionSource] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    unmodified: frozenset[str] = frozenset()
    explicit: frozenset[str] = frozenset()


Look = Callable[[Mapping[str, ModelRecord]], Awaitable[Change]]


class Updates:
    """Applies changes to `lifecycle`. `records` are the requested models by name."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.records: dict[str, ModelRecord] = {}
        self._planning = asyncio.Lock()
        self._busy: dict[str, asyncio.Event] = {}
        self._num_released = 0

    async def apply(self, look: Look) -> dict[str, str | None]:
        """Apply the change that `look` returns: load ensembles after the models they need, unload them before.

        `look` is called again if another change came between. Returns, for each model to load, the reason of its
        failure or None. It does not wait for unloads to end.
        """
        while True:
            async with self._planning:
                num_released = self._num_released
                change = await look(self.records)
                if num_released != self._num_released:
                    continue
                affected = self._affected(change)
                held = affected | change.unmodified
                conflict = next((self._busy[name] for name in sorted(held) if name in self._busy), None)
                if conflict is None:
                    done = asyncio.Event()
                    self._busy |= dict.fromkeys(held, done)
                    break
            await conflict.wait()
        try:
            return await self._run(change, affected)
        finally:
            for name in held:
                del self._busy[name]
            self._num_released += 1
            done.set()

    def unload_all(self) -> None:
        """Start unloading everything, ensembles before their models."""
        self._unload_in_order(self.lifecycle.names, self._configs())

    def _configs(self) -> dict[str, Message]:
        return {name: record.source.config for name, record in self.records.items()}

    def _affected(self, change: Change) -> set[str]:
        configs = self._configs() | {name: source.config for name, source in change.changed.items()}
        direct = change.changed.keys() | change.removed
        return direct | dependents(configs, direct)

    async def _run(self, change: Change, affected: set[str]) -> dict[str, str | None]:
        before = self._configs()
        self._commit(change)
        after = self._configs()
        results: dict[str, str | None] = {}
        for name in affected & self.records.keys():
            self.records[name].problem = results[name] = problem(name, after)
        refused = {name for name, text in results.items() if text is not None}
        self._unload_in_order(change.removed | refused, before | after)

        tasks: dict[str, asyncio.Task[None]] = {}

        async def settle(name: str) -> None:
            needed = [tasks[other] for other in steps(after[name]) if other in tasks]
            if needed:
                await asyncio.wait(needed)
            results[name] = await self._load(name)

        async with asyncio.TaskGroup() as group:
            for name in sorted(results.keys() - refused):
                tasks[name] = group.create_task(settle(name))
        return results

    def _commit(self, change: Change) -> None:
        for name in change.removed:
            self.records.pop(name, None)
        for name, source in change.changed.items():
            old = self.records.get(name)
            self.records[name] = ModelRecord(
                source,
                source.fingerprint,
                previous=old.fingerprint if old else None,
                is_explicit=name in change.explicit or (old is not None and old.is_explicit),
            )

    def _unload_in_order(self, names: Iterable[str], configs: Mapping[str, Message]) -> None:
        """All stop serving now; each is unloaded after the ensembles that may still use it."""
        going = set(names)
        tasks: dict[str, list[asyncio.Task[None]]] = {}

        def unload(name: str) -> list[asyncio.Task[None]]:
            if name not in tasks:
                tasks[name] = []  # for ensembles in a circle
                after = [task for other in sorted(dependents(configs, [name]) & going) for task in unload(other)]
                tasks[name] = self.lifecycle.unload(name, after)
            return tasks[name]

        for name in sorted(going):
            unload(name)

    async def _load(self, name: str) -> str | None:
        """Load one model whose own models are done. Returns the reason of a failure, or None."""
        record = self.records[name]
        record.problem = self._missing(name, record.source.config)
        source = record.source
        if record.problem is None and steps(source.config):
            try:
                source = self._checked_ensemble(source)
            except ConfigError as error:
                record.problem = error.message
        if record.problem is not None:
            self.lifecycle.unload(name)
            return record.problem
        try:
            await self.lifecycle.load(source, record.previous)
        except EngineError as error:
            record.error, record.fingerprint = error.message, record.previous
            return error.message
        except BaseException:
            record.fingerprint = record.previous
            raise
        record.error = None
        return None

    def _missing(self, name: str, config: Message) -> str | None:
        """The missing need of an ensemble, in Triton's text."""
        for needed, versions in steps(config).items():
            who = f"ensemble '{name}' depends on '{needed}'"
            record = self.records.get(needed)
            ready = self.lifecycle.ready_versions(needed)
            if record is not None and record.problem:
                return f"{who} which is not valid. Model '{needed}' failed with error: {record.problem}"
            if not ready:
                error = record.error if record is not None else None
                why = f" Model '{needed}' loading failed with error: {error}" if error is not None else ""
                return f"{who} which has no loaded version.{why}"
            for version in sorted(versions - {-1} - ready):
                return f"{who} whose required version {version} is not loaded."
        return None

    def _checked_ensemble(self, source: VersionSource) -> VersionSource:
        """The ensemble, completed with its decoupled property by its models. Raises: ConfigError."""
        config = copy.deepcopy(source.config)
        models = {name: self.lifecycle.get(name).config for name in steps(config)}
        config.model_transaction_policy.decoupled = check_mapping(config, models)
        return replace(source, config=config)
