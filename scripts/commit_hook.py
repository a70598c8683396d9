"""hatchling's hook: writes the commit that a wheel or an sdist is built from into it, as `gateway/commit.txt`.

The commit is `SOURCE_COMMIT` of the environment, where a build has no repository (docker/*.Dockerfile); else what git
says of the repository. A wheel of an sdist has the sdist's. Without any of them there is no file. An editable
installation has none either: `pointsman --version` asks git.
"""

from __future__ import annotations

import os
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "gateway/commit.txt"


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the file to what is built."""

    _written: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or (root / PLACE).exists():  # of an sdist, whose files are taken as they are
            return
        if commit := os.environ.get("SOURCE_COMMIT") or _commit_of(root):
            handle, name = tempfile.mkstemp()
            with os.fdopen(handle, "w") as file:
                file.write(f"{commit}\n")
            self._written = Path(name)
            self._written.chmod(0o644)
            build_data["force_include"][name] = PLACE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._written is not None:
            self._written.unlink(missing_ok=True)


def _commit_of(root: Path) -> str:
    """As the program itself says; by its file, since a build's environment cannot import what it builds."""
    spec = spec_from_file_location("commit", root / "gateway" / "cli" / "commit.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := module_from_spec(spec))
    found: str = module.commit_of(root)
    return found
