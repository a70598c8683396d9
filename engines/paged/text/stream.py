"""Texts that end an answer: found however the text is cut, and what may become one is held back until it is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engines.paged.base.types import SamplingParams
from engines.paged.text.tokenizer import Tokenizer


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


class Told(NamedTuple):
    """Text that may be told, the stop text that ended it, and how many of the tokens given belong to it: those after
    the one that completed the stop text do not."""

    text: str
    stop: str | None = None
    num_tokens: int = 0


class TextStream:
    """Detokenizes, and looks for stop texts. After one is found, or a flush, it has ended."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = tokenizer.detokenizer(params.skip_special_tokens)
        self._stops = StopTexts(params.stop, params.include_stop_str_in_output) if params.stop else None

    def push(self, token_ids: Sequence[int], may_stop: bool = True) -> Told:
        """`may_stop` is False for tokens that come before a request's min_tokens: stop texts in them end nothing."""
        if self._stops is None:
            return Told(self._detokenizer.push(token_ids), None, len(token_ids))
        if not may_stop:
            return Told(self._stops.pass_by(self._detokenizer.push(token_ids)), None, len(token_ids))
        told: list[str] = []
        for i, token_id in enumerate(token_ids):
            text, stop = self._stops.push(self._detokenizer.push((token_id,)))
            told.append(text)
            if stop is not None:
                return Told("".join(told), stop, i + 1)
        return Told("".join(told), None, len(token_ids))

    def flush(self) -> Told:
        """The rest, at the end of the tokens; characters that a wait held back may complete a stop text yet."""
        rest = self._detokenizer.flush()
        if self._stops is None:
            return Told(rest)
        text, stop = self._stops.push(rest)
        return Told(text, stop) if stop is not None else Told(text + self._stops.flush())
