"""The files of models: roots, directories, configuration files, labels, versions, and fingerprints of changes.

Source: Triton's model repository documentation; core `model_repository_manager.cc`, `label_provider.cc`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.core.errors import internal, invalid
from gateway.protocol.protobuf import Message

CONFIG_FILENAME = "config.pbtxt"
CONFIG_DIRECTORY = "configs"
DUPLICATE = "model appears in two or more repositories"


def check_roots(roots: Iterable[Path]) -> None:
    """Raises: EngineError if one of them is no directory."""
    for root in roots:
        if not root.is_dir():
            raise invalid(f"repository path is not a valid directory: '{root}'")


def model_directories(roots: Sequence[Path]) -> dict[str, list[Path]]:
    """The directories of each model, by its name; more than one means that the model is in several roots. Raises:
    OSError."""
    result: dict[str, list[Path]] = {}
    for root in roots:
        for entry in sorted(root.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                result.setdefault(entry.name, []).append(entry)
    return dict(sorted(result.items()))


def config_path(directory: Path, config_name: str = "") -> Path:
    """A model's configuration file: `configs/NAME.pbtxt` if the host selects that name and it exists."""
    custom = directory / CONFIG_DIRECTORY / f"{config_name}.pbtxt"
    return custom if config_name and custom.exists() else directory / CONFIG_FILENAME


def read_labels(config: Message, directory: Path) -> dict[str, tuple[str, ...]]:
    """The labels of each output that names a file of them, by the output's name: a line each. Raises: EngineError if a
    file cannot be read."""
    named = {output.name: directory / output.label_filename for output in config.output if output.label_filename}
    return {name: _lines(path) for name, path in named.items()}


def _lines(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from error
    return tuple(text.removesuffix("\n").split("\n")) if text else ()


_log = logging.getLogger(__name__)

# Directories beside the versions.
OTHER_DIRECTORIES = frozenset({"warmup", "initial_state", "configs"})


def version_of(directory_name: str) -> int | None:
    """The version that a directory holds; None if its name is no whole number, or has zeros in front."""
    is_number = directory_name.isascii() and directory_name.isdigit()
    return int(directory_name) if is_number and str(int(directory_name)) == directory_name else None


def versions_in(model_directory: Path) -> list[int]:
    """All existing versions, in order. Raises: EngineError."""
    try:
        entries = list(model_directory.iterdir())
    except OSError as error:
        raise internal(f"failed to open directory {model_directory}: {error.strerror}") from error
    result = []
    for entry in entries:
        if entry.name in OTHER_DIRECTORIES or entry.name.startswith(".") or not entry.is_dir():
            continue
        version = version_of(entry.name)
        if version is None:
            _log.warning("ignore version directory '%s', whose name is not a version: 1, 2, 3", entry)
        else:
            result.append(version)
    return sorted(result)


def wanted_versions(config: Message, versions: Iterable[int]) -> list[int]:
    """The versions that the policy of `config` selects, in order."""
    policy, there = config.version_policy, sorted(versions)
    match policy.WhichOneof("policy_choice"):
        case "specific":
            for version in sorted(set(policy.specific.versions) - set(there)):
                _log.error(
                    "version %d is specified for model '%s', but the version directory is not present",
                    version,
                    config.name,
                )
            return [version for version in there if version in policy.specific.versions]
        case "latest":
            return there[-policy.latest.num_versions :] if policy.latest.num_versions else []
        case _:
            return there


# Each file under an entry of the model's directory: path, nanoseconds of its last change, bytes.
Files = tuple[tuple[str, int, int], ...]

# Written by the models themselves, at the first import.
IGNORED = "__pycache__"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The files under each entry of a model's directory, by the entry's name. Equal means unchanged. `config_entry` is
    the entry in which the configuration lies."""

    entries: Mapping[str, Files]
    config_entry: str

    def has_same_version(self, other: Fingerprint | None, version: int) -> bool:
        """Whether a version's files and the shared ones are equal in both, the configuration aside."""
        return other is not None and self._of_version(version) == other._of_version(version)

    def _of_version(self, version: int) -> dict[str, Files]:
        shared = {
            name: files
            for name, files in self.entries.items()
            if name != self.config_entry and version_of(name) is None
        }
        return shared | {str(version): self.entries.get(str(version), ())}


def fingerprint(directory: Path, config_entry: str = "config.pbtxt") -> Fingerprint:
    """Raises: OSError if the directory cannot be read."""
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
