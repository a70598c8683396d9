"""The version of this program: its number, the commit that it was built from, and how. `scripts/commit_hook.py` uses it
too, at the build, and so it imports the standard library alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_FILE = "commit.txt"  # in the package
_DESCRIBE = ("git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")


def description() -> str:
    """`pointsman 0.1.0 (commit 7a36d43e2a1c, pure Python)`; a checkout with changes has `-dirty` behind its commit."""
    from importlib.metadata import version
    from importlib.util import find_spec

    spec = find_spec("gateway.wire.http1.head")  # one of scripts/compiled/modules.txt
    build = "pure Python" if spec is None or str(spec.origin).endswith(".py") else "compiled"
    return f"pointsman {version('pointsman')} (commit {commit_of(PACKAGE.parent) or 'unknown'}, {build})"


def commit_of(root: Path) -> str:
    """The commit of a checkout, or the one that an installation or an sdist names; "" where none is known."""
    if (root / ".git").exists():  # not that of a repository around an environment
        try:
            done = subprocess.run(_DESCRIBE, cwd=root, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout.strip()
    try:
        return (root / PACKAGE.name / _FILE).read_text().strip()
    except OSError:
        return ""
