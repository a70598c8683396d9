"""One answer as it grows: when it ends, and what of it may be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.paged.base.types import FinishReason, TokenLogprob
from engines.paged.generation.speculation import DraftLength, NgramIndex
from engines.paged.runner.runner import Sampled
from engines.paged.scheduling.sequence import Sequence
from engines.paged.text.stream import TextStream


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step has added to an answer."""

    tokens: list[int]  # that belong to it: of guesses, none behind its end
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None = None
    stop: str | int | None = None


class Choice:
    """The text of one sequence, and the rules by which it ends."""

    def __init__(
        self, sequence: Sequence, text: TextStream, eos_token_ids: frozenset[int], matcher: Any | None = None
    ) -> None:
        params = sequence.request.params
        self.sequence = sequence
        self.matcher = matcher  # of a grammar
        self.ngrams: NgramIndex | None = None
        self.judge: DraftLength | None = None
        self.cumulative_logprob = 0.0
        self.last_time = 0.0  # when its last token came
        self._text = text
        self._stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_token_ids)
        self._min_tokens = params.min_tokens
        self._tells_logprobs = params.logprobs is not None

    def grow(self, sampled: Sampled) -> StepOutput:
        """Take what a step has yielded, up to where the answer ends. The sequence does not have these tokens yet."""
        tokens: list[int] = []
        texts: list[str] = []
        logprobs: list[TokenLogprob] = []
        reason: FinishReason | None = None
        stop: str | int | None = None
        for index, token in enumerate(sampled.tokens):
            tokens.append(token)
            self.cumulative_logprob += sampled.logprobs[index]
            if self._tells_logprobs:
                logprobs.append(TokenLogprob(token, sampled.logprobs[index], sampled.top[index]))
            num_output = self.sequence.num_output + len(tokens)
            if token in self._stop_ids and num_output >= self._min_tokens:
                reason, stop = (
                    FinishReason.STOP,
                    token if token in self.sequence.request.params.stop_token_ids else None,
                )
                break
            if self.matcher is not None:
                self.matcher.accept(token)
            told = self._text.push((token,), may_stop=num_output >= self._min_tokens)
            texts.append(told.text)
            if told.stop is not None:
                reason, stop = FinishReason.STOP, told.stop
                break
            if self.matcher is not None and self.matcher.is_complete:
                reason = FinishReason.STOP
                break
            if self.sequence.num_prompt + num_output >= self.sequence.max_tokens:
                reason = FinishReason.LENGTH
                break
        if reason is not None and not isinstance(stop, str):
            told = self._text.flush()
            texts.append(told.text)
            if told.stop is not None:
                reason, stop = FinishReason.STOP, told.stop
        return StepOutput(tokens, "".join(texts), tuple(logprobs), reason, stop)

    def rest(self) -> str:
        """The text that was held back, for an answer that ends before its time."""
        return self._text.flush().text

    def guesses(self, cost: float) -> list[int]:
        """Tokens that may come next, by what its text has said before."""
        if self.ngrams is None or self.judge is None:
            return []
        guessed = self.ngrams.guess(self.sequence.tokens, self.judge.num_guesses(cost))
        if self.matcher is not None:
            del guessed[self.matcher.num_valid(guessed) :]
        return guessed
