"""How far the load of a model is: lines of the log, which `pointsman llm` reads again to draw a bar."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

_log = logging.getLogger(__name__)

# A line where so much has been done since the last, or another thing begins; and no more than so many a second.
_SHARE = 0.05
_SECONDS = 0.1
_LINE = re.compile(r"loading: (.+): ([0-9]+) of ([0-9]+)")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """`done` of `total`, in whatever the stage counts."""

    stage: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"loading: {self.stage}: {self.done} of {self.total}"

    @property
    def is_whole(self) -> bool:
        return self.done >= self.total


def find_progress(line: str) -> LoadProgress | None:
    """What a line of the log says of a load, None where it says something else."""
    found = _LINE.search(line)
    return LoadProgress(found[1], int(found[2]), int(found[3])) if found is not None else None


class Loading:
    """What an engine tells of its load, written down; called with the stage, what is done, and what there is."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._last = LoadProgress("", 0, 0)
        self._told_at = 0.0
        _log.info("loading '%s'", folder)

    def __call__(self, stage: str, done: int, total: int) -> None:
        progress, last = LoadProgress(stage, done, total), self._last
        now = monotonic()
        is_other = stage != last.stage or (progress.is_whole and not last.is_whole)
        is_more = done - last.done >= _SHARE * total and now - self._told_at >= _SECONDS
        if is_other or is_more:
            self._last, self._told_at = progress, now
            _log.info("%s", progress)

    def end(self, told: Mapping[str, Any]) -> None:
        """It is loaded; `told` is what the engine says of itself."""
        _log.info(
            "%s runs on %s (%s, %s), contexts of up to %s tokens: %s",
            self._name,
            told["device"],
            told["ops"],
            told["dtype"],
            f"{told['max_context']:,}",
            told["memory_text"],
        )
