"""Problems in a file: place, message, and the nearest right spelling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum

_MAX_LISTED = 50


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Severity(Enum):
    """An error rejects the whole input; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding, printed as compilers print theirs, so that editors can jump to it."""

    location: Location
    message: str
    severity: Severity = Severity.ERROR

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR

    def __str__(self) -> str:
        return f"{self.location}: {self.severity.value}: {self.message}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is spelt most like this one, case aside; None where none is near."""
    lower = {choice.lower(): choice for choice in known}
    found = get_close_matches(word.lower(), lower, n=1)
    return lower[found[0]] if found else None


def suggest(word: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown word: with the nearest known one, else with them all, or the first of many."""
    choices = list(known)
    likely = nearest(word, choices)
    if likely is not None:
        return f": did you mean {likely!r}?"
    more = f" and {len(choices) - _MAX_LISTED} more" if len(choices) > _MAX_LISTED else ""
    return f"; known: {', '.join(choices[:_MAX_LISTED])}{more}" if choices else ""
