"""Why rules are not taken, and why a file is not edited."""

from __future__ import annotations

from collections.abc import Sequence

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
