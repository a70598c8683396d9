"""How texts differ, as people and `patch` read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import unified_diff

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
    lines = unified_diff(_lines(before), _lines(after), was, is_)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    return [line for line in _LINE_END.split(text) if line]
