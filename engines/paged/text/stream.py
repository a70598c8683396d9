"""The text of one choice as its tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engines.paged.sampling.params import SamplingParams
from engines.paged.text.stop_strings import StopTexts
from engines.paged.text.tokenizer import Tokenizer


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
