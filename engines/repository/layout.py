"""Where a repository's models lie: roots, model directories, configuration files, labels.

Source: Triton's model repository documentation; core `model_repository_manager.cc`, `label_provider.cc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from engines.core.errors import internal, invalid
from gateway.protocol.protobuf import Message

CONFIG_FILENAME = "config.pbtxt"
CONFIG_DIRECTORY = "configs"
DUPLICATE = "model appears in two or more repositories"


def check_roots(roots: Iterable[Path]) -> None:
    """Raises: EngineError where one of them is no directory."""
    for root in roots:
        if not root.is_dir():
            raise invalid(f"repository path is not a valid directory: '{root}'")


def model_directories(roots: Sequence[Path]) -> dict[str, list[Path]]:
    """The directories of each model, by its name; more than one means that the model is in several roots.

    Raises: OSError.
    """
    found: dict[str, list[Path]] = {}
    for root in roots:
        for entry in sorted(root.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                found.setdefault(entry.name, []).append(entry)
    return dict(sorted(found.items()))


def config_path(directory: Path, config_name: str = "") -> Path:
    """A model's configuration file: `configs/NAME.pbtxt` where the host asks for that name and it is there."""
    custom = directory / CONFIG_DIRECTORY / f"{config_name}.pbtxt"
    return custom if config_name and custom.exists() else directory / CONFIG_FILENAME


def read_labels(config: Message, directory: Path) -> dict[str, tuple[str, ...]]:
    """The labels of each output that names a file of them, by the output's name: a line each.

    Raises: EngineError where a file cannot be read.
    """
    named = {output.name: directory / output.label_filename for output in config.output if output.label_filename}
    return {name: _lines(path) for name, path in named.items()}


def _lines(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from error
    return tuple(text.removesuffix("\n").split("\n")) if text else ()
