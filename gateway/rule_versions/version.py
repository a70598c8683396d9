"""Versions of the rules: texts with author, reason and time; and the errors of activations and edits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from gateway.protocol.stored_json import count_of, time_of
from gateway.yaml.problems import Problem


class RulesRefused(Exception):  # noqa: N818 - an answer, not a fault
    """New rules are invalid, so the active ones stay; each problem has its location."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        errors = [problem for problem in self.problems if problem.is_error]
        super().__init__("\n".join(map(str, errors or self.problems)))


class EditError(Exception):
    """The files cannot be edited as requested; the message says why, and what to do instead."""


class NoSuchVersion(Exception):  # noqa: N818
    """There is no such version any more; the message lists the existing ones."""


@dataclass(frozen=True, slots=True)
class Version:
    """`base` is the digest of the files on disk when it was created, `base_files` are their names: it stays active
    across a restart while those files are unchanged."""

    number: int
    time: float  # seconds since 1970
    author: str
    reason: str
    source: str  # files | api | experiment
    digest: str
    base: str
    files: tuple[str, ...]  # names, in their order
    base_files: tuple[str, ...] = ()
    of: int | None = None  # the version whose texts it restores
    is_return: bool = False  # created by a rollback: its predecessor is that of the restored version

    @property
    def is_exported(self) -> bool:
        """Whether the files on disk say the same."""
        return self.digest == self.base

    def __str__(self) -> str:
        return f"version {self.number} by {self.author}{f' ({self.reason})' if self.reason else ''}"


def read_version(data: Mapping[str, Any]) -> Version:
    """Raises: KeyError, TypeError, ValueError where it is none."""
    return Version(
        number=count_of(data["number"]),
        time=time_of(data["time"]),
        author=str(data["author"]),
        reason=str(data["reason"]),
        source=str(data["source"]),
        digest=str(data["digest"]),
        base=str(data["base"]),
        files=tuple(map(str, data["files"])),
        base_files=tuple(map(str, data.get("base_files", ()))),
        of=count_of(data["of"]) if data.get("of") is not None else None,
        is_return=data.get("is_return") is True,
    )


def placed(texts: Mapping[str, str], then: Sequence[str], now: Sequence[str]) -> dict[str, str]:
    """Texts under the file names of this gateway.

    `then` and `now` are the names of the same files on disk, when the texts were written and now: gateways may run in
    different folders. Other files are placed beside the first one.
    """
    names = dict(zip(then, now, strict=True)) if len(then) == len(now) else {}
    beside = Path(now[0]).parent if now else Path()
    known = set(now)
    return {
        names.get(name, name if name in known or not now else str(beside / Path(name).name)): text
        for name, text in texts.items()
    }


_LINE_END = re.compile(r"(?<=\n)")


def diff_texts(before: Mapping[str, str], after: Mapping[str, str], was: str, is_: str) -> list[dict[str, str]]:
    """Every file that differs: `name` and its unified `diff`; an added or removed file counts as a whole.

    `was` and `is_` label the two sides.
    """
    names = dict.fromkeys((*before, *after))
    return [
        {"name": name, "diff": text}
        for name in names
        if (text := diff_text(before.get(name, ""), after.get(name, ""), f"{name} ({was})", f"{name} ({is_})"))
    ]


def diff_text(before: str, after: str, was: str, is_: str) -> str:
    old, new = ([line for line in _LINE_END.split(text) if line] for text in (before, after))
    diff = unified_diff(old, new, was, is_)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff)
