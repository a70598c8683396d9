"""The text of one choice as its tokens come, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from engines.paged.base.types import SamplingParams
from engines.paged.text.tokenizer import Tokenizer


class StopTexts:
    """Finds stop strings of one sequence across token borders. The one that ends first ends the text; of several that
    end together, the longest."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """`include`: the stop string is part of the text. No stop string is empty."""
        self._stops = sorted(stops, key=len, reverse=True)
        self._include = include
        self._held = ""
        # Endings of a text that must be held back.
        self._beginnings = frozenset(stop[:length] for stop in stops for length in range(1, len(stop)))
        self._longest = max(map(len, stops), default=1) - 1

    def push(self, text: str) -> tuple[str, str | None]:
        """(text to emit, the stop string found or None); nothing may be pushed after a stop string."""
        text = self._held + text
        matches = [(start + len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            end, stop = min(matches, key=lambda each: each[0])
            self._held = ""
            return text[: end if self._include else end - len(stop)], stop
        lengths = range(min(self._longest, len(text)), 0, -1)
        held = next((length for length in lengths if text[-length:] in self._beginnings), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def pass_by(self, text: str) -> str:
        """Text that cannot end a choice, behind the text held back before it."""
        text, self._held = self._held + text, ""
        return text


class TextStream:
    """Detokenizes and looks for stop strings. It ends with a stop string or a flush."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = tokenizer.detokenizer(params.skip_special_tokens)
        self._stops = StopTexts(params.stop, params.include_stop_str_in_output) if params.stop else None

    def push(self, token_id: int, may_stop: bool = True) -> tuple[str, str | None]:
        """(text to emit, the stop string that ended it or None). `may_stop` is False for tokens before min_tokens: stop
        strings in them have no effect."""
        text = self._detokenizer.push(token_id)
        if self._stops is None:
            return text, None
        return self._stops.push(text) if may_stop else (self._stops.pass_by(text), None)

    def flush(self) -> tuple[str, str | None]:
        """The remaining text; an unfinished character may complete a stop string."""
        rest = self._detokenizer.flush()
        if self._stops is None:
            return rest, None
        text, stop = self._stops.push(rest)
        return (text, stop) if stop is not None else (text + self._stops.pass_by(""), None)
