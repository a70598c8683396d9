"""A version of the rules: who put which texts in force, when and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.yaml.problems import Problem


class RulesRefused(Exception):  # noqa: N818 - an answer, not a fault
    """New rules have mistakes, so those in force stay; each problem has its place."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        errors = [problem for problem in self.problems if problem.is_error]
        super().__init__("\n".join(map(str, errors or self.problems)))


class EditError(Exception):
    """An edit cannot be done in the files as they are written; the message says why, and what can be done."""


class NoSuchVersion(Exception):  # noqa: N818
    """There is no such version, or none any more; the message says which there are."""


SOURCES = ("files", "api", "experiment")


@dataclass(frozen=True, slots=True)
class Version:
    """`base` is the digest of the files on disk when it was made, `base_files` are their names: it stays in force over
    a restart as long as those files say the same."""

    number: int
    time: float  # seconds since 1970
    author: str
    reason: str
    source: str  # one of SOURCES
    digest: str
    base: str
    files: tuple[str, ...]  # names, in their order
    base_files: tuple[str, ...] = ()
    of: int | None = None  # the version whose texts it has again
    is_return: bool = False  # made by rolling back: what was there before it is what was there before that one

    @property
    def is_exported(self) -> bool:
        """Whether the files on disk say the same."""
        return self.digest == self.base

    def __str__(self) -> str:
        return f"version {self.number} by {self.author}{f' ({self.reason})' if self.reason else ''}"


def write_version(version: Version) -> dict[str, Any]:
    """As JSON, without the texts."""
    return asdict(version)


def read_version(told: Mapping[str, Any]) -> Version:
    """Raises: KeyError, TypeError, ValueError where it is none."""
    return Version(
        number=int(told["number"]),
        time=float(told["time"]),
        author=str(told["author"]),
        reason=str(told["reason"]),
        source=str(told["source"]),
        digest=str(told["digest"]),
        base=str(told["base"]),
        files=tuple(map(str, told["files"])),
        base_files=tuple(map(str, told.get("base_files", ()))),
        of=int(told["of"]) if told.get("of") is not None else None,
        is_return=told.get("is_return") is True,
    )


def placed(texts: Mapping[str, str], then: Sequence[str], now: Sequence[str]) -> dict[str, str]:
    """Texts under the names that files have here and now.

    `then` and `now` are the names of the same files on disk, where the texts were written and here: a gateway may be
    started in another folder, and another one has other folders. What is none of them stands beside the first.
    """
    names = dict(zip(then, now, strict=True)) if len(then) == len(now) else {}
    beside = Path(now[0]).parent if now else Path()
    known = set(now)
    return {
        names.get(name, name if name in known or not now else str(beside / Path(name).name)): text
        for name, text in texts.items()
    }
