"""One request with its choices, and the outputs that its listener gets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from engines.paged.base.types import FinishReason, GenerateRequest, Listener, Output, TokenLogprob, Usage
from engines.paged.generation.beams import BeamSearch
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
    """The text of one sequence as it grows, and the rules by which it ends. `drafter` proposes tokens, None without
    speculation."""

    def __init__(self, sequence: Sequence, text: TextStream, eos_ids: frozenset[int], drafter: Drafter | None) -> None:
        params = sequence.request.params
        self.sequence = sequence
        self.drafter = drafter
        self.cumulative_logprob = 0.0
        self.last_time = 0.0  # when its last token was read, 0 before the first
        self._matcher = sequence.sampling.matcher
        self._text = text
        self._stop_ids = params.end_ids(eos_ids)
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


_log = logging.getLogger(__name__)

_COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)


class Generation:
    """An admitted request whose choices are sent as they grow. After its creation it belongs to the engine's thread."""

    def __init__(self, request: GenerateRequest, choices: list[Choice], listener: Listener, arrived: float) -> None:
        """`arrived` in seconds of time.monotonic()."""
        self.request = request
        self.choices = choices
        self.arrived = arrived
        self.has_begun = False  # whether a token has been sampled
        self._listener = listener
        self._num_unfinished = len(choices)
        self._num_output = 0
        self._prompt_logprobs: list[TokenLogprob | None] = [None]  # the first token has no predecessor

    @property
    def is_finished(self) -> bool:
        return not self._num_unfinished

    @property
    def usage(self) -> Usage:
        first = self.choices[0].sequence
        return Usage(first.num_prompt, self._num_output, first.num_cached)

    def add_prompt_logprobs(self, first: int, logprobs: list[TokenLogprob]) -> None:
        """Log probabilities of prompt tokens from place `first` on; a preempted sequence reports some of them twice."""
        self._prompt_logprobs[first : first + len(logprobs)] = logprobs

    def deliver(self, choice: Choice, step: StepOutput, *, is_first: bool = False, error: str = "") -> None:
        """Send what a step has added to a choice; `is_first`: the choice was empty before."""
        self._count(step)
        self._send(
            Output(
                choice.sequence.choice,
                step.text,
                tuple(step.tokens),
                step.logprobs,
                step.finish_reason,
                step.stop,
                self.usage,
                self.is_finished,
                error,
                choice.cumulative_logprob,
                self._requested_prompt_logprobs() if is_first and not choice.sequence.choice else (),
            )
        )

    def end(self, choice: Choice, reason: FinishReason, error: str = "") -> None:
        """End a choice before its time."""
        self.deliver(choice, StepOutput([], choice.rest(), (), reason), error=error)

    def _count(self, step: StepOutput) -> None:
        self._num_output += len(step.tokens)
        if step.finish_reason is not None:
            self._num_unfinished -= 1

    def _requested_prompt_logprobs(self) -> tuple[TokenLogprob | None, ...]:
        return tuple(self._prompt_logprobs) if self.request.params.prompt_logprobs is not None else ()

    def _send(self, output: Output) -> None:
        try:
            self._listener(output)
        except Exception:  # a faulty listener does not fail other requests
            _log.exception("the listener of request %s failed", self.request.id)


class BestOfGeneration(Generation):
    """A request with `best_of` above `n`: its choices are buffered until all have ended, then the best `n` are sent."""

    def __init__(self, request: GenerateRequest, choices: list[Choice], listener: Listener, arrived: float) -> None:
        super().__init__(request, choices, listener, arrived)
        self._steps: list[list[StepOutput]] = [[] for _ in choices]

    def deliver(self, choice: Choice, step: StepOutput, *, is_first: bool = False, error: str = "") -> None:
        self._count(step)
        self._steps[choice.sequence.choice].append(step)
        if not self.is_finished:
            return
        best = sorted(self.choices, key=self._rank)[: self.request.params.n]
        for place, each in enumerate(best):
            steps = self._steps[each.sequence.choice]
            last = steps[-1]
            self._send(
                Output(
                    place,
                    "".join(step.text for step in steps),
                    tuple(token for step in steps for token in step.tokens),
                    tuple(logprob for step in steps for logprob in step.logprobs),
                    last.finish_reason,
                    last.stop,
                    self.usage,
                    place == len(best) - 1,
                    error if last.finish_reason not in _COMPLETE else "",
                    each.cumulative_logprob,
                    self._requested_prompt_logprobs() if not place else (),
                )
            )

    def _rank(self, choice: Choice) -> tuple[bool, float]:
        """By log probability per token, the highest first; failed choices come last."""
        steps = self._steps[choice.sequence.choice]
        mean = choice.cumulative_logprob / max(1, sum(len(step.tokens) for step in steps))
        return steps[-1].finish_reason not in _COMPLETE, -mean


class BeamGeneration(Generation):
    """A request by beam search: its choices are the beams' seats, and its best hypotheses are sent at the end."""

    def __init__(
        self,
        request: GenerateRequest,
        choices: list[Choice],
        listener: Listener,
        arrived: float,
        beams: BeamSearch,
        decode: Callable[[tuple[int, ...]], str],
    ) -> None:
        super().__init__(request, choices, listener, arrived)
        self.beams = beams
        self._decode = decode

    def end(self, choice: Choice, reason: FinishReason, error: str = "") -> None:
        self._num_unfinished -= 1
        if self.is_finished:
            self._send(Output(0, finish_reason=reason, usage=self.usage, is_final=True, error=error))

    def deliver_best(self) -> None:
        """Send the best hypotheses of a search that is done."""
        self._num_unfinished = 0
        best = self.beams.best(self.request.params.n)
        self._num_output = sum(len(each.tokens) for each in best)
        for place, each in enumerate(best):
            self._send(
                Output(
                    place,
                    self._decode(each.tokens),
                    each.tokens,
                    finish_reason=FinishReason.STOP if each.has_ended else FinishReason.LENGTH,
                    usage=self.usage,
                    is_final=place == len(best) - 1,
                    cumulative_logprob=each.logprob,
                    prompt_logprobs=self._requested_prompt_logprobs() if not place else (),
                )
            )
