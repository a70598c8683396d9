"""Rule files on disk: which there are, and what stands in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gateway.yaml.location import Location
from gateway.yaml.problems import Problem

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One file as it was when it was read."""

    path: Path
    content: bytes


def read_files(paths: Sequence[Path]) -> tuple[list[RuleFile], list[Problem]]:
    """Read the files that the paths name; what cannot be found or read is a problem."""
    files, problems = [], []
    found, missing = _find(paths)
    for path, reason in missing:
        problems.append(Problem(Location(str(path), 1, 1), reason))
    for path in found:
        try:
            files.append(RuleFile(path, path.read_bytes()))
        except OSError as error:
            problems.append(Problem(Location(str(path), 1, 1), f"cannot be read: {error.strerror}"))
    return files, problems


def files_of(texts: Mapping[str, str]) -> list[RuleFile]:
    """The files that these texts would be; half a surrogate pair is reported by whoever reads them."""
    return [RuleFile(Path(name), text.encode("utf-8", "surrogatepass")) for name, text in texts.items()]


def digest_of(contents: Iterable[bytes]) -> str:
    """A digest of the texts in their order: the same rules have the same digest on each machine."""
    digest = sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


def _find(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Expand directories; a file that is named twice counts once."""
    found: dict[Path, Path] = {}
    missing = []
    for path in paths:
        try:
            inside = _inside(path) if path.is_dir() else [path]
            if not inside:
                missing.append((path, "the directory has no .yaml or .yml file"))
            for file in inside:
                found.setdefault(file.resolve(), file)
        except (OSError, RuntimeError, ValueError) as error:  # no right to list, links in a circle, a NUL in the path
            missing.append((path, f"cannot be read: {error}"))
    return list(found.values()), missing


def _inside(directory: Path) -> list[Path]:
    """The rule files of a directory in name order; hidden ones, such as Kubernetes' `..data`, are passed over."""
    inside = [path for path in directory.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith(".")]
    return sorted(path for path in inside if not path.is_dir())
