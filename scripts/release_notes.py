#!/usr/bin/env python3
"""Print a release's section of CHANGELOG.md.

    scripts/release_notes.py v0.2.0

Exit status: 0, or 1 where CHANGELOG.md has no such section, pyproject.toml has another version, or the version is not
MAJOR.MINOR.PATCH (semver.org) with an optional pre-release as of PEP 440 (0.2.0rc1).
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


class ReleaseError(Exception):
    """The repository is not at this release; the message says what to change."""


def notes(version: str, root: Path) -> str:
    """Raises: ReleaseError."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version} is not a version such as 0.2.0 or 0.2.0rc1")
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if declared != version:
        raise ReleaseError(f"pyproject.toml has version {declared}, not {version}")
    found = re.search(rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", _text(root), re.DOTALL | re.MULTILINE)
    if found is None or not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md has no section '## {version}': rename '## Unreleased'")
    return found[1].strip() + "\n"


def _text(root: Path) -> str:
    return (root / "CHANGELOG.md").read_text()


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 0 if "--help" in sys.argv else 1
    try:
        print(notes(sys.argv[1].removeprefix("v"), Path(__file__).resolve().parents[1]), end="")
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
