"""Notice that rule files have changed, by reading them: so symlinks that Kubernetes swaps and any mount will do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.config.files import digest_of, read_files


class RuleFiles:
    """The rule paths as last seen. Rule files are small: a poll reads them whole, about 20 µs a file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether names or contents differ from the last call (the first time: from the construction).

        Make this object before the rules are loaded: a change between the two is then seen, not lost.
        """
        seen, self._seen = self._seen, self._look()
        return seen != self._seen

    def _look(self) -> str:
        files, problems = read_files(self._paths)
        parts = [str(problem).encode() for problem in problems]
        for file in files:
            parts += [str(file.path).encode(errors="surrogateescape"), file.content]
        return digest_of(parts)

    def __repr__(self) -> str:
        return f"<RuleFiles {', '.join(map(str, self._paths))}: {self._seen[:12]}>"
