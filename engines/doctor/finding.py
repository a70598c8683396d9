"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class FindingStatus(Enum):
    """How much a finding matters. Only FAIL makes the command's exit status 1."""

    OK = "ok"
    WARN = "warn"  # it works, slower or not for everything
    FAIL = "fail"  # something will not work
    SKIPPED = "skipped"  # it does not apply here, or what it needs is not installed


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, in a sentence with its figures; `cure` is what to do about it. `figures` are the report's."""

    status: FindingStatus
    found: str
    cure: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Finding:
        """Raises: KeyError, ValueError where it is not one of `to_json`."""
        return cls(FindingStatus(values["status"]), values["found"], values["cure"], values["figures"])


def ok(found: str, **figures: Any) -> Finding:
    return Finding(FindingStatus.OK, found, figures=figures)


def warn(found: str, cure: str, **figures: Any) -> Finding:
    return Finding(FindingStatus.WARN, found, cure, figures)


def fail(found: str, cure: str, **figures: Any) -> Finding:
    return Finding(FindingStatus.FAIL, found, cure, figures)


def skipped(why: str, cure: str = "") -> Finding:
    return Finding(FindingStatus.SKIPPED, why, cure)


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table.

    function   "module:name"; it is called with `arguments`
    platforms  values of sys.platform that it applies to; empty: all
    needs      modules that must be installed
    extra      the extra of pyproject.toml that installs them
    """

    name: str
    function: str
    seconds: float = 20.0
    platforms: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    extra: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
