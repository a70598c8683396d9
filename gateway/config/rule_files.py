"""Rule files on disk: finding, reading and digesting them, and noticing that they have changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gateway.net.regular_file import read_regular
from gateway.yaml.problems import Location, Problem

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One file as it was read."""

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
            files.append(RuleFile(path, read_regular(path)))
        except OSError as error:
            problems.append(Problem(Location(str(path), 1, 1), f"cannot be read: {error.strerror}"))
    return files, problems


def files_of(texts: Mapping[str, str]) -> list[RuleFile]:
    """Rule files from texts; invalid surrogates are reported when they are parsed."""
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


# Stamps are believed once they are older than the coarsest clock that file systems have (FAT: two seconds), and for so
# many looks, since some mounts have none that can be trusted.
_SETTLED_SECONDS = 3.0
_LOOKS_BY_STAMP = 9

_Stamps = tuple[tuple[int, ...] | None, ...]


class RuleFiles:
    """The rule paths as last seen."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._others: tuple[Path, ...] = ()
        self._places: tuple[Path, ...] = ()  # the paths, and the files that they have come to
        self._stamps: _Stamps = ()
        self._num_unread = 0  # looks since the files were read
        self._seen = self._look()

    def watch_too(self, others: Sequence[Path]) -> None:
        """Notice changes of these files, too, which the rules refer to. They count as changed once, since they may have
        changed after they were read."""
        if self._others != tuple(others):
            self._others, self._stamps = tuple(others), ()

    def changed(self) -> bool:
        """Whether names or contents differ from the last call (the first time: from the construction).

        Make this object before the rules are loaded: a change between the two is then seen, not lost.
        """
        if self._num_unread < _LOOKS_BY_STAMP and self._stamps and self._stamps == _stamps(self._places):
            self._num_unread += 1
            return False
        seen, self._seen = self._seen, self._look()
        return seen != self._seen

    def wait(self, wake: threading.Event, seconds: float) -> None:
        """Return when the files have changed (checked every `seconds`) or the event is set; either way the current
        state counts as seen."""
        while not wake.wait(seconds):
            if self.changed():
                return
        self.changed()

    def _look(self) -> str:
        now = time.time()
        before = _stamps(self._places)
        files, problems = read_files((*self._paths, *self._others))
        places = (*self._paths, *self._others, *(file.path for file in files))
        # A file that changes while it is read has other stamps afterwards; a missing one may be anywhere.
        is_settled = places == self._places and not problems and _are_settled(before, now)
        self._places, self._num_unread = places, 0
        self._stamps = before if is_settled else ()
        parts = [str(problem).encode() for problem in problems]
        for file in files:
            parts += [str(file.path).encode(errors="surrogateescape"), file.content]
        return digest_of(parts)


def _stamps(places: Sequence[Path]) -> _Stamps:
    return tuple([_stamp(place) for place in places])


def _stamp(place: Path) -> tuple[int, ...] | None:
    try:
        found = place.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _are_settled(stamps: _Stamps, now: float) -> bool:
    """Whether another change would have another stamp."""
    latest = (now - _SETTLED_SECONDS) * 1e9
    return all(stamp is not None and stamp[3] < latest and stamp[4] < latest for stamp in stamps)
