"""Texts that end an answer: found however the text is cut, and what may become one is held back until it is none."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Of one sequence. The text that ends first ends the answer; of several that end together, the longest."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """`include`: the stop text itself is told, too. No stop is empty."""
        self._stops = sorted(stops, key=len, reverse=True)
        self._include = include
        self._held = ""
        # What a text may end in that is not to be told yet.
        self._beginnings = frozenset(stop[:length] for stop in stops for length in range(1, len(stop)))
        self._longest = max(map(len, stops), default=1) - 1

    def push(self, text: str) -> tuple[str, str | None]:
        """(what may be told, the stop text that has come): after a stop nothing more is to be pushed."""
        text = self._held + text
        found = [(start + len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            end, stop = min(found, key=lambda each: each[0])
            self._held = ""
            return text[: end if self._include else end - len(stop)], stop
        held = self._length_held(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def pass_by(self, text: str) -> str:
        """Text that cannot end an answer, with what was held back before it."""
        text, self._held = self._held + text, ""
        return text

    def flush(self) -> str:
        """What was held back, at the end."""
        return self.pass_by("")

    def _length_held(self, text: str) -> int:
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0
