"""What is told of a recording of traffic, and how its file tells it.

A recording is a file of JSON lines: what it is, then a decision a line, then how it ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


class RecordingError(Exception):
    """There can be no such recording; the message says why."""


class NoRecordingError(Exception):
    """There is no such recording; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What is told of one. `ended` is why it takes no more, empty while it does."""

    name: str
    started: float  # seconds since 1970
    by: str
    share: float
    seconds: float
    max_facts: int
    rules: str  # digest of those in force when it began
    number: int
    headers: tuple[str, ...] = ()  # those of whose values anything is recorded
    facts: int = 0
    skipped: int = 0  # over the rate at which workers tell
    bytes: int = 0
    ended: str = ""


def read_recording(path: Path) -> Recording | None:
    """What a file's first and last line tell; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            told = json.loads(file.readline())
            size = file.seek(0, 2)
            file.seek(max(0, size - 4096))
            last = file.read().splitlines()[-1]
        told.pop("recording")
        made = Recording(**{**told, "name": path.stem, "headers": tuple(told["headers"]), "bytes": size})
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return replace(made, **_ending(last))


def _ending(last: bytes) -> dict[str, Any]:
    """What the last line tells; a recording whose gateway was killed has none."""
    try:
        told = json.loads(last)
        return {"ended": str(told["end"]), "facts": int(told["facts"]), "skipped": int(told["skipped"])}
    except (ValueError, KeyError, TypeError):
        return {"ended": "its gateway was killed"}
