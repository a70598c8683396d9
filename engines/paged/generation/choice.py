"""One choice of a request as it grows: its text, and the rules by which it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.paged.base.types import FinishReason, TokenLogprob
from engines.paged.generation.speculation import Drafter
from engines.paged.runner.runner import Sampled
from engines.paged.scheduling.sequence import Sequence
from engines.paged.text.stream import TextStream


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step adds to a choice. `tokens` end where the choice ends: drafts behind its end are left out."""

    tokens: list[int]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None = None
    stop: str | int | None = None


class Choice:
    """The text of one sequence. `matcher` follows a grammar; `drafter` proposes tokens, None without speculation."""

    def __init__(
        self,
        sequence: Sequence,
        text: TextStream,
        eos_token_ids: frozenset[int],
        matcher: Any | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        params = sequence.request.params
        self.sequence = sequence
        self.drafter = drafter
        self.cumulative_logprob = 0.0
        self.last_time = 0.0  # when its last token was read, 0 before the first
        self._matcher = matcher
        self._text = text
        self._stop_ids = params.end_ids(eos_token_ids)
        self._min_tokens = params.min_tokens
        self._has_logprobs = params.logprobs is not None

    def grow(self, sampled: Sampled) -> StepOutput:
        """Take the tokens of a step, up to the end of the choice. The sequence does not have these tokens yet."""
        tokens: list[int] = []
        texts: list[str] = []
        logprobs: list[TokenLogprob] = []
        reason: FinishReason | None = None
        stop: str | int | None = None
        sequence, matcher = self.sequence, self._matcher
        for index, token in enumerate(sampled.tokens):
            tokens.append(token)
            self.cumulative_logprob += sampled.logprobs[index]
            if self._has_logprobs:
                logprobs.append(TokenLogprob(token, sampled.logprobs[index], sampled.top[index]))
            num_output = sequence.num_output + len(tokens)
            if token in self._stop_ids and num_output >= self._min_tokens:
                reason, stop = FinishReason.STOP, token if token in sequence.request.params.stop_token_ids else None
                break
            if matcher is not None:
                matcher.accept(token)
            text, stop = self._text.push(token, num_output >= self._min_tokens)
            texts.append(text)
            if stop is not None:
                reason = FinishReason.STOP
                break
            if matcher is not None and matcher.is_complete:
                reason = FinishReason.STOP
                break
            if sequence.num_prompt + num_output >= sequence.max_tokens:
                reason = FinishReason.LENGTH
                break
        if reason is not None and not isinstance(stop, str):
            text, stop_text = self._text.flush()
            texts.append(text)
            if stop_text is not None:
                reason, stop = FinishReason.STOP, stop_text
        return StepOutput(tokens, "".join(texts), tuple(logprobs), reason, stop)

    def rest(self) -> str:
        """The text held back so far, for a choice that ends before its time."""
        return self._text.flush()[0]
