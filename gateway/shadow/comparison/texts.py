"""The comparison of two texts: where they diverge, and how much is equal.

A token here is a word or a single sign (`\\w+|[^\\w\\s]`), so that engines with different tokenizers can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.shadow.comparison.outputs import GeneratedText

_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class TextDifference:
    """One output. `first_character` and `first_token` are where the texts diverge, None where they do not; a character
    without a token means that only white space differs. Pairs are (primary, candidate)."""

    name: str
    problem: str  # "" where both have it
    first_character: int | None = None
    first_token: int | None = None
    prefix_share: float = 1.0  # of the longer text's characters
    characters: tuple[int, int] = (0, 0)
    tokens: tuple[int, int] = (0, 0)
    finishes: tuple[str, str] = ("", "")
    calls_differ: bool = False
    around: tuple[str, str] = ("", "")  # both texts where they diverge, if excerpts are allowed

    @property
    def agrees(self) -> bool:
        same_finish = self.finishes[0] == self.finishes[1]
        return not self.problem and self.first_character is None and same_finish and not self.calls_differ


def compare(name: str, primary: GeneratedText | None, candidate: GeneratedText | None, excerpts: int) -> TextDifference:
    """Compare one output; None: that side lacks it. Up to `excerpts` characters are quoted."""
    if primary is None or candidate is None:
        problem = f"only the {'candidate' if primary is None else 'primary'} has it"
        return TextDifference(name, problem, first_character=0, first_token=0, prefix_share=0.0)
    one, other = primary.text, candidate.text
    common = _common(one, other)
    longest = max(len(one), len(other))
    differ = one != other
    tokens_one, tokens_other = _TOKEN.findall(one), _TOKEN.findall(other)
    start = max(0, common - excerpts // 3)
    return TextDifference(
        name,
        "",
        first_character=common if differ else None,
        first_token=_common(tokens_one, tokens_other) if tokens_one != tokens_other else None,
        prefix_share=common / longest if longest else 1.0,
        characters=(len(one), len(other)),
        tokens=(len(tokens_one), len(tokens_other)),
        finishes=(primary.finish, candidate.finish),
        calls_differ=primary.tool_calls != candidate.tool_calls,
        around=(one[start : start + excerpts], other[start : start + excerpts]) if differ else ("", ""),
    )


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the common prefix, in characters or tokens."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
