"""Progress of a model's load as log lines, which `pointsman llm` parses to draw a bar."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

_log = logging.getLogger(__name__)

# A line per this share of progress or new stage, and at most one per this time.
_SHARE = 0.05
_SECONDS = 0.1
_LINE = re.compile(r"loading: (.+): ([0-9]+) of ([0-9]+)")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """`done` of `total`, in the stage's unit."""

    stage: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"loading: {self.stage}: {self.done} of {self.total}"

    @property
    def is_complete(self) -> bool:
        return self.done >= self.total


def find_progress(line: str) -> LoadProgress | None:
    """The progress in a log line, None where it is another line."""
    match = _LINE.search(line)
    return LoadProgress(match[1], int(match[2]), int(match[3])) if match is not None else None


class Loading:
    """Logs an engine's progress; called with the stage, what is done, and the total."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._last = LoadProgress("", 0, 0)
        self._logged_at = 0.0
        _log.info("loading '%s'", folder)

    def __call__(self, stage: str, done: int, total: int) -> None:
        progress, last = LoadProgress(stage, done, total), self._last
        now = monotonic()
        is_other = stage != last.stage or (progress.is_complete and not last.is_complete)
        is_more = done - last.done >= _SHARE * total and now - self._logged_at >= _SECONDS
        if is_other or is_more:
            self._last, self._logged_at = progress, now
            _log.info("%s", progress)

    def end(self, description: Mapping[str, Any]) -> None:
        """The engine is loaded."""
        _log.info(
            "%s runs on %s (%s, %s), contexts of up to %s tokens: %s",
            self._name,
            description["device"],
            description["ops"],
            description["dtype"],
            f"{description['max_context']:,}",
            description["memory_text"],
        )
