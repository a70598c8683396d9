"""What a model's files were when it was loaded: how a poll sees that a model, or one version of it, has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.repository.versions import version_of

# Each file under an entry of the model's directory: path, nanoseconds of its last change, bytes.
Files = tuple[tuple[str, int, int], ...]

# Written by the models themselves, at the first import.
IGNORED = "__pycache__"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The files under each entry of a model's directory, by the entry's name. Equal means unchanged.

    `config_entry` is the entry in which the configuration lies.
    """

    entries: Mapping[str, Files]
    config_entry: str

    def has_same_version(self, other: Fingerprint | None, version: int) -> bool:
        """Whether a version's files, and those that all versions share, are the same in both; not so its config."""
        return other is not None and self._of_version(version) == other._of_version(version)

    def _of_version(self, version: int) -> dict[str, Files]:
        shared = {
            name: files
            for name, files in self.entries.items()
            if name != self.config_entry and version_of(name) is None
        }
        return shared | {str(version): self.entries.get(str(version), ())}


def fingerprint(directory: Path, config_entry: str = "config.pbtxt") -> Fingerprint:
    """Raises: OSError where the directory cannot be read."""
    entries = {
        entry.name: tuple(sorted(_files(entry, entry.name))) for entry in os.scandir(directory) if entry.name != IGNORED
    }
    return Fingerprint(entries, config_entry)


def _files(entry: os.DirEntry[str], path: str) -> Iterator[tuple[str, int, int]]:
    try:
        if entry.is_dir():
            yield path, 0, 0
            for inner in os.scandir(entry.path):
                if inner.name != IGNORED:
                    yield from _files(inner, f"{path}/{inner.name}")
        else:
            status = entry.stat()
            yield path, max(status.st_mtime_ns, status.st_ctime_ns), status.st_size
    except FileNotFoundError:  # gone while it was looked at
        return
