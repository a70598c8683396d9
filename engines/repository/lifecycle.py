"""The loaded versions: loaded together, swapped in when all are ready, unloaded in the background.

Source: Triton core `model_lifecycle.cc`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
from collections.abc import Iterable, Mapping, Sequence

from engines.core.errors import EngineError, ErrorCode, invalid, unavailable
from engines.repository import config as configuration
from engines.repository.layout import Fingerprint, read_labels, versions_in, wanted_versions
from engines.repository.sources import VersionSource
from engines.repository.states import Load, LoadedVersion, ModelSpec, ModelState, Version, as_engine_error
from gateway.protocol.protobuf import Message

_log = logging.getLogger(__name__)

Labels = Mapping[str, Sequence[str]]


class Lifecycle:
    """`load` loads a version, at most `max_concurrent_loads` at a time; `gpus` are the devices for instance groups. One
    caller at a time changes a model."""

    def __init__(self, load: Load, *, gpus: Sequence[int], max_concurrent_loads: int) -> None:
        self._load = load
        self._gpus = tuple(gpus)
        self._limit = asyncio.Semaphore(max_concurrent_loads)
        self._versions: dict[str, dict[int, Version]] = {}
        # The lookup table of `get`: each ready version by its number as text, the latest one as "".
        self._serving: dict[str, dict[str, LoadedVersion]] = {}
        self._unloads: set[asyncio.Task[None]] = set()

    def get(self, name: str, version: str = "") -> LoadedVersion:
        """The model that serves; the latest ready version by default. Raises: EngineError with Triton's text."""
        try:
            return self._serving[name][version]
        except KeyError:
            return self._find_ready(name, version)

    def _find_ready(self, name: str, version: str) -> LoadedVersion:
        """Triton reads a version with `std::stol`: anything behind the digits is ignored."""
        number = None if version == "" else version_number(version)
        unknown = f"Request for unknown model: '{name}'"
        versions = self._versions.get(name)
        if versions is None:
            raise EngineError(ErrorCode.NOT_FOUND, f"{unknown} is not found")
        if number is None:
            raise EngineError(ErrorCode.NOT_FOUND, f"{unknown} has no available versions")
        match = versions.get(number)
        if match is None:
            raise EngineError(ErrorCode.NOT_FOUND, f"{unknown} version {number} is not found")
        if not match.is_ready or match.model is None:
            raise unavailable(f"{unknown} version {number} is not at ready state")
        return match.model

    def versions(self, name: str) -> Mapping[int, Version] | None:
        """The versions of a model by number, in order; None if it was never loaded."""
        versions = self._versions.get(name)
        return None if versions is None else dict(sorted(versions.items()))

    def ready_versions(self, name: str) -> set[int]:
        return {number for number, version in self._versions.get(name, {}).items() if version.is_ready}

    @property
    def is_ready(self) -> bool:
        """Whether every model serves: all its versions are ready, except for unloaded ones."""
        return all(
            versions and all(version.is_as_wanted for version in versions.values())
            for versions in self._versions.values()
        )

    @property
    def names(self) -> set[str]:
        return set(self._versions)

    async def load(self, source: VersionSource, previous: Fingerprint | None = None) -> None:
        """Load the versions of the policy; they serve once all are ready, the previous ones until then.

        A serving version is reused if neither its files (since `previous`) nor its configuration changed. Raises:
        EngineError(INVALID_ARG) if one of them fails: the previous ones go on serving.
        """
        current = self._versions.setdefault(source.name, {})
        wanted = wanted_versions(source.config, await asyncio.to_thread(versions_in, source.directory))
        if not wanted:
            raise invalid(f"at least one version must be available under the version policy of model '{source.name}'")
        unchanged = {number for number in wanted if _can_keep(current.get(number), source, previous)}
        lives = {number: Version(source, number) for number in wanted if number not in unchanged}
        for number, life in lives.items():
            if number not in current or not current[number].is_ready:
                current[number] = life
        _log.info("loading '%s': versions %s", source.name, ", ".join(map(str, wanted)))
        try:
            async with asyncio.TaskGroup() as group:
                for life in lives.values():
                    group.create_task(self._create(life))
        except BaseException:
            self._give_up(lives.values(), unavailable("Server exiting"))
            raise
        reason = "".join(_failure(life) for life in lives.values() if life.state is ModelState.UNAVAILABLE)
        if reason:
            self._give_up(lives.values(), invalid(reason))
            raise invalid(reason)
        self._swap_in(source.name, lives, unchanged)

    def unload(self, name: str, after: Iterable[asyncio.Task[None]] = ()) -> list[asyncio.Task[None]]:
        """Unload all versions of a model. Returns at once; the tasks end when its versions are gone, after those in
        `after`."""
        going = [version for version in self._versions.get(name, {}).values() if version.is_ready]
        tasks = [self._begin_unload(version, after) for version in going]
        self._publish(name)
        return tasks

    async def wait_for_unloads(self) -> None:
        while self._unloads:
            await asyncio.wait(set(self._unloads))

    async def _create(self, life: Version) -> None:
        """Load one version. Never raises but for cancellation: its failure is its state."""
        async with self._limit:
            try:
                life.model = await self._load_checked(life)
            except Exception as error:
                life.fail(as_engine_error(error))
                _log.error("failed to load '%s' version %d: %s", life.name, life.number, life.reason)

    async def _load_checked(self, life: Version) -> LoadedVersion:
        assert life.source is not None
        inherited = self._labels_of_steps(life.source.config)
        model = await self._load(await asyncio.to_thread(_spec, life.source, life.number, inherited, self._gpus))
        try:
            configuration.check(model.config)
            configuration.check_tensors(model.config)
        except configuration.ConfigError:
            await model.unload()
            raise
        return model

    def _labels_of_steps(self, config: Message) -> Labels:
        """The labels of an ensemble's outputs in the models that write them."""
        labels: dict[str, Sequence[str]] = {}
        for step in config.ensemble_scheduling.step:
            version = "" if step.model_version < 0 else str(step.model_version)
            model = self._serving.get(step.model_name, {}).get(version)
            for output, tensor in step.output_map.items() if model is not None else ():
                if model is not None and output in model.spec.labels:
                    labels[tensor] = model.spec.labels[output]
        return labels

    def _swap_in(self, name: str, lives: Mapping[int, Version], unchanged: set[int]) -> None:
        current = self._versions[name]
        going = [version for number, version in current.items() if version.is_ready and number not in unchanged]
        for number, life in lives.items():
            life.go(ModelState.READY)
            current[number] = life
        for version in going:
            self._begin_unload(version)
        self._publish(name)
        _log.info("successfully loaded '%s'", name)

    def _give_up(self, lives: Iterable[Version], error: EngineError) -> None:
        """End a failed load: unload its loaded versions, fail the others."""
        for life in lives:
            if life.model is not None:
                self._begin_unload(life)
            elif life.state is ModelState.LOADING:
                life.fail(error)

    def _begin_unload(self, version: Version, after: Iterable[asyncio.Task[None]] = ()) -> asyncio.Task[None]:
        version.go(ModelState.UNLOADING)
        task = asyncio.get_running_loop().create_task(_finish_unload(version, tuple(after)))
        self._unloads.add(task)
        task.add_done_callback(self._unloads.discard)
        return task

    def _publish(self, name: str) -> None:
        """Bring the table that `get` reads up to date."""
        ready = {
            number: version.model
            for number, version in sorted(self._versions.get(name, {}).items())
            if version.is_ready and version.model is not None
        }
        if ready:
            self._serving[name] = {str(number): model for number, model in ready.items()} | {"": ready[max(ready)]}
        else:
            self._serving.pop(name, None)


async def _finish_unload(version: Version, after: Sequence[asyncio.Task[None]]) -> None:
    if after:
        await asyncio.wait(after)
    assert version.model is not None
    try:
        await version.model.unload()
    except Exception:
        _log.exception("unloading '%s' version %d", version.name, version.number)
    version.become_unloaded()
    _log.info("successfully unloaded '%s' version %d", version.name, version.number)


def _can_keep(version: Version | None, source: VersionSource, previous: Fingerprint | None) -> bool:
    if version is None or not version.is_ready or version.source is None or source.fingerprint is None:
        return False
    if source.config.HasField("ensemble_scheduling"):
        return False
    return source.fingerprint.has_same_version(previous, version.number) and _but_for_policy(
        source.config
    ) == _but_for_policy(version.source.config)


def _but_for_policy(config: Message) -> Message:
    stripped = copy.deepcopy(config)
    stripped.ClearField("version_policy")
    return stripped


def _spec(source: VersionSource, number: int, inherited: Labels, gpus: Sequence[int]) -> ModelSpec:
    """Raises: EngineError."""
    config = copy.deepcopy(source.config)
    configuration.set_instance_groups(config, gpus)
    configuration.check_instance_groups(config, gpus)
    configuration.check_tensors(config, is_complete=False)
    labels = {**inherited, **read_labels(config, source.directory)}
    return ModelSpec(
        name=source.name,
        version=number,
        directory=source.directory,
        version_directory=source.directory / str(number),
        config=config,
        labels={output.name: labels[output.name] for output in config.output if output.name in labels},
    )


def _failure(life: Version) -> str:
    return f"version {life.number} is at {life.state.value} state: {life.reason};"


def version_number(text: str) -> int:
    """The number that a request's version stands for. Raises: EngineError in Triton's words."""
    match = re.match(r"\s*[+-]?\d+", text, re.ASCII)
    if match is None or not -(1 << 63) <= int(match[0]) < 1 << 63:
        raise invalid(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0"
        )
    if int(match[0]) < 0:
        raise invalid(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return int(match[0])
