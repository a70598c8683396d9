"""A model as the repository has it at one moment: its directory and its checked configuration, ready to be loaded."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engines.core.errors import invalid
from engines.repository import config as configuration
from engines.repository.layout import Fingerprint, config_path, fingerprint
from gateway.protocol.protobuf import Message, message

FILE_PREFIX = "file:"


class TemporaryDirectory:
    """A directory that is deleted with its last reference."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="pointsman-model-")).resolve()
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class VersionSource:
    """`config` is checked, and complete except for what the model's file declares. `fingerprint` is None if the files
    came with the load request; `temporary` then holds them."""

    name: str
    directory: Path
    config: Message
    fingerprint: Fingerprint | None
    temporary: TemporaryDirectory | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """The contents of a load request: a configuration as JSON, and files by their paths in the model's directory."""

    config: str | None = None
    files: Mapping[str, bytes] | None = None


def find_fingerprint(directory: Path, config_name: str = "") -> Fingerprint:
    """Raises: EngineError if the directory cannot be read."""
    path = config_path(directory, config_name)
    try:
        return fingerprint(directory, path.relative_to(directory).parts[0])
    except OSError as error:
        raise invalid(f"failed to read {directory}: {error.strerror}") from error


def read_source(
    name: str,
    directory: Path,
    fingerprint: Fingerprint,
    *,
    config: str | None = None,
    config_name: str = "",
    may_complete: bool = True,
) -> VersionSource:
    """A model from its directory, or with a request's configuration.

    `may_complete`: whether a configuration may be missing, or leave inputs and outputs to the model. Raises:
    EngineError, with file and line for errors of the configuration.
    """
    path = config_path(directory, config_name)
    has_file = config is None and (path.exists() or not may_complete)
    if config is not None:
        parsed = configuration.read_json(config)
    else:
        parsed = configuration.read(path) if has_file else message("inference.ModelConfig")()
    try:
        return VersionSource(name, directory, _finish(parsed, name, directory, may_complete), fingerprint)
    except configuration.ConfigError as error:
        if not has_file:
            raise
        line = configuration.line_of(path.read_text(encoding="utf-8", errors="replace"), error.words)
        raise invalid(f"{path}:{line}: {error.message}" if line else f"{path}: {error.message}") from error


def read_override(name: str, override: Override, *, may_complete: bool = True) -> VersionSource:
    """A model from the contents of a request. Raises: EngineError."""
    temporary = TemporaryDirectory()
    for path, data in sorted((override.files or {}).items()):
        _write_file(temporary.path, path, data)
    if override.config is None:
        raise invalid("Load parameter 'config' must be specified for model file override")
    config = configuration.read_json(override.config)
    config = _finish(config, name, temporary.path, may_complete)
    return VersionSource(name, temporary.path, config, None, temporary)


def _write_file(directory: Path, name: str, data: bytes) -> None:
    path = PurePosixPath(name.removeprefix(FILE_PREFIX))
    target = (directory / path).resolve()
    if not target.is_relative_to(directory) or target == directory:
        raise invalid(
            f"Invalid file parameter '{name}' with normalized path '{target}' must stay within model directory."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise invalid(f"Invalid file parameter '{name}', directory has been created as a file") from error


def _finish(config: Message, name: str, directory: Path, may_complete: bool) -> Message:
    """Completed with defaults, and checked."""
    configuration.complete_backend(config, name, directory)
    configuration.set_defaults(config)
    configuration.check(config)
    if not may_complete:
        configuration.check_tensors(config)
    if config.name != name:
        raise configuration.ConfigError(
            f"unexpected directory name '{name}' for model '{config.name}', directory name must equal model name",
            "name",
        )
    return config
