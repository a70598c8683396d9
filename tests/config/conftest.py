"""Loading rule files from literal text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.rules import LoadedRules, load_rules

Load = Callable[..., LoadedRules]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load texts as rules.yaml, rules2.yaml, ... with exactly the given environment."""
    monkeypatch.chdir(tmp_path)

    def load_texts(*texts: str, **environment: str) -> LoadedRules:
        paths = [Path(f"rules{number if number > 1 else ''}.yaml") for number in range(1, len(texts) + 1)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return load_rules(paths, environment)

    return load_texts
