"""Polling a repository: its models, and which of them have changed. It waits for disks and networks, in a thread.

Source: Triton core `model_repository_manager.cc` Poll, PollModels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engines.core.errors import invalid
from engines.repository.ensembles import steps
from engines.repository.layout import Fingerprint, check_roots, model_directories
from engines.repository.sources import Override, VersionSource, find_fingerprint, read_override, read_source
from engines.repository.states import as_engine_error
from engines.repository.storage import Root, open_root

NOT_FOUND = "model not found in any model repository"
NOT_UNIQUE = "not unique across all model repositories"


@dataclass(slots=True)
class ModelRecord:
    """A requested model. `fingerprint` is of the files of its last load, `previous` of those before, which count again
    if the load fails. `problem` is the reason why its configuration cannot be loaded, `error` that of its last failed
    load."""

    source: VersionSource
    fingerprint: Fingerprint | None
    previous: Fingerprint | None = None
    is_explicit: bool = True
    problem: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Polled:
    """`problems` are the reasons by model that cannot be read; a recorded one stays as it was. `unknown` are names
    that no root has."""

    changed: dict[str, VersionSource] = field(default_factory=dict)
    unmodified: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)


class RepositoryRoots:
    """The roots of a repository, and how its models are read. `may_complete`: whether models may leave their
    configuration, or parts of it, to be completed. Copies of remote roots go into `cache_directory`."""

    def __init__(
        self,
        roots: Sequence[str | Path],
        *,
        config_name: str = "",
        may_complete: bool = True,
        cache_directory: Path | None = None,
    ) -> None:
        self._addresses = tuple(roots)
        self._config_name = config_name
        self._may_complete = may_complete
        self._cache_directory = cache_directory
        self.roots: tuple[Root, ...] = ()

    def open(self) -> None:
        """Open the roots, and list the models of remote ones. Raises: EngineError if one of them is not a directory, or
        unreachable."""
        self.roots = tuple(open_root(root, self._cache_directory) for root in self._addresses)
        for root in self.roots:
            root.refresh_names()
        check_roots(root.path for root in self.roots)

    def refresh(self, model: str = "") -> None:
        """Bring copies of remote roots up to date, or of one model there. Raises: EngineError."""
        for root in self.roots:
            root.refresh(model)

    def directories(self) -> dict[str, list[Path]]:
        """The directories of each model. Raises: EngineError."""
        try:
            return model_directories([root.path for root in self.roots])
        except OSError as error:
            raise invalid(f"failed to poll model repository '{error.filename}': {error.strerror}") from error

    def poll_all(self, records: Mapping[str, ModelRecord]) -> Polled:
        """Look at all models. Raises: EngineError if a root cannot be read."""
        self.refresh()
        polled = Polled()
        for name, directories in self.directories().items():
            if len(directories) > 1:
                polled.problems[name] = NOT_UNIQUE
            else:
                self._poll(name, directories[0], Override(), records, polled)
        return polled

    def poll(self, wanted: Mapping[str, Override], records: Mapping[str, ModelRecord]) -> Polled:
        """Poll some models, and those that ensembles among them need."""
        polled, seen = Polled(), set[str]()
        current = dict(wanted)
        while current:
            for name, override in current.items():
                self._poll_named(name, override, records, polled)
            seen |= current.keys()
            polled_configs = [polled.changed[name].config for name in current if name in polled.changed]
            polled_configs += [records[name].source.config for name in current if name in polled.unmodified]
            needed = {name for config in polled_configs for name in steps(config)}
            current = {name: Override() for name in sorted(needed - seen)}
        return polled

    def _poll_named(self, name: str, override: Override, records: Mapping[str, ModelRecord], polled: Polled) -> None:
        try:
            if override.files:
                polled.changed[name] = read_override(name, override, may_complete=self._may_complete)
                return
            directories = self._directories_of(name)
        except Exception as error:  # a name that the file system rejects, a full disk
            polled.problems[name] = as_engine_error(error).message
            if override.files:
                polled.unknown.add(name)
            return
        if len(directories) == 1:
            self._poll(name, directories[0], override, records, polled)
        else:
            polled.problems[name] = NOT_UNIQUE if directories else NOT_FOUND
            if not directories:
                polled.unknown.add(name)

    def _directories_of(self, name: str) -> list[Path]:
        if name in ("", ".", "..") or "/" in name or "\0" in name:  # it would lead out of the repository
            return []
        self.refresh(name)
        return [root.path / name for root in self.roots if (root.path / name).exists()]

    def _poll(
        self, name: str, directory: Path, override: Override, records: Mapping[str, ModelRecord], polled: Polled
    ) -> None:
        try:
            fingerprint = find_fingerprint(directory, self._config_name)
            if override.config is None and name in records and records[name].fingerprint == fingerprint:
                polled.unmodified.add(name)
                return
            polled.changed[name] = read_source(
                name,
                directory,
                fingerprint,
                config=override.config,
                config_name=self._config_name,
                may_complete=self._may_complete,
            )
        except Exception as error:  # one model's fault does not affect the others
            polled.problems[name] = as_engine_error(error).message
            if name in records:
                polled.unmodified.add(name)
