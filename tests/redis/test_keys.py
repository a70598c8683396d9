"""The keys in Redis are documented for operators."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "gateway" / "sessions" / "README.md").read_text()
_KEY = re.compile(r"pointsman:1:([a-z]+)")
# Read to check whether Redis answers, and never written.
_NEVER_WRITTEN = {"knock"}


def keys() -> list[str]:
    """The kinds of keys that the source code names."""
    files = [file for folder in ("gateway", "engines") for file in (REPOSITORY / folder).rglob("*.py")]
    return sorted({kind for file in files for kind in _KEY.findall(file.read_text())} - _NEVER_WRITTEN)


@pytest.mark.parametrize("kind", keys())
def test_a_kind_of_key_has_its_row(kind: str) -> None:
    """The table of keys has the type, content, lifetime and size of each kind."""
    rows = [line for line in README.splitlines() if line.startswith(f"| `pointsman:1:{kind}")]
    assert rows and all(row.count(" | ") == 4 for row in rows)


def test_every_kind_is_looked_for() -> None:
    """The search finds at least the oldest kinds of keys."""
    assert {"session", "sequence", "talk", "limit", "news", "drained", "replicas", "kv", "state"} <= set(keys())
