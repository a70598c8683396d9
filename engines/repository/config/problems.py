"""What is wrong with a configuration, and where in its file that stands."""

from __future__ import annotations

import re

from engines.core.errors import EngineError, ErrorCode


class ConfigError(EngineError):
    """A configuration that cannot be served, in Triton's words.

    `words` lead to the place in the file: field names and quoted values as they follow each other there.
    """

    def __init__(self, message: str, *words: str) -> None:
        super().__init__(ErrorCode.INVALID_ARG, message)
        self.words = words


def line_of(text: str, words: tuple[str, ...]) -> int | None:
    """The line, counted from 1, of the last of `words`, each looked for behind the one before; None where the first is
    not in the text. Comments count as blank."""
    text = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text)
    start, found = 0, None
    for word in words:
        match = re.compile(rf"(?<![\w]){re.escape(word)}(?![\w])").search(text, start)
        if match is None:
            break
        found, start = match.start(), match.end()
    return None if found is None else text.count("\n", 0, found) + 1
