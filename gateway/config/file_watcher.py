"""Notice that rule files have changed, by their stamps and, where these may not tell, by reading them: so symlinks that
Kubernetes swaps and any mount will do."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.config.files import digest_of, read_files

# Stamps are believed once they are older than the coarsest clock that file systems have (FAT: two seconds), and for so
# many looks, since some mounts have none that can be trusted.
_SETTLED_SECONDS = 3.0
_LOOKS_BY_STAMP = 9

_Stamps = tuple[tuple[int, ...] | None, ...]


class RuleFiles:
    """The rule paths as last seen."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._places: tuple[Path, ...] = ()  # the paths, and the files that they have come to
        self._stamps: _Stamps = ()
        self._num_unread = 0  # looks since the files were read
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether names or contents differ from the last call (the first time: from the construction).

        Make this object before the rules are loaded: a change between the two is then seen, not lost.
        """
        if self._num_unread < _LOOKS_BY_STAMP and self._stamps and self._stamps == _stamps(self._places):
            self._num_unread += 1
            return False
        seen, self._seen = self._seen, self._look()
        return seen != self._seen

    def wait(self, is_asked: threading.Event, seconds: float) -> None:
        """Return when they have changed, looked at each so many seconds, or when asked to. Asked or not, what is there
        then counts as seen."""
        while not is_asked.wait(seconds):
            if self.changed():
                return
        self.changed()

    def _look(self) -> str:
        now = time.time()
        before = _stamps(self._places)
        files, problems = read_files(self._paths)
        places = (*self._paths, *(file.path for file in files))
        # What changes while it is read has other stamps after than before; what is missing may be anywhere.
        is_settled = places == self._places and not problems and _are_settled(before, now)
        self._places, self._num_unread = places, 0
        self._stamps = before if is_settled else ()
        parts = [str(problem).encode() for problem in problems]
        for file in files:
            parts += [str(file.path).encode(errors="surrogateescape"), file.content]
        return digest_of(parts)

    def __repr__(self) -> str:
        return f"<RuleFiles {', '.join(map(str, self._paths))}: {self._seen[:12]}>"


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
