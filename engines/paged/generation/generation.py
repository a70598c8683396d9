"""One request: its choices, and what its listener is told of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from engines.paged.base.types import FinishReason, GenerateRequest, Listener, Output, TokenLogprob, Usage
from engines.paged.generation.beams import BeamSearch
from engines.paged.generation.choice import Choice, StepOutput

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """An answer of which nothing is told before all are there (`best_of`)."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop: str | int | None = None


class Generation:
    """A request that was taken. All of it happens on the engine's thread but for its making."""

    def __init__(
        self,
        request: GenerateRequest,
        choices: list[Choice],
        listener: Listener,
        arrived: float,
        beams: BeamSearch | None = None,
    ) -> None:
        """`arrived` in seconds of time.monotonic(). With `beams` the choices are its seats."""
        self.beams = beams
        self.request = request
        self.choices = choices
        self.arrived = arrived
        self.has_begun = False  # whether a token has come
        self._listener = listener
        self._num_unfinished = len(choices)
        self._num_output = 0
        self._prompt_logprobs: list[TokenLogprob | None] = [None]  # nothing comes before the first token
        wanted = request.params.n
        self._held = [_Held() for _ in choices] if len(choices) > wanted and beams is None else None

    def __repr__(self) -> str:
        return f"<Generation {self.request.id}: {self._num_unfinished} of {len(self.choices)} unfinished>"

    @property
    def is_finished(self) -> bool:
        return not self._num_unfinished

    @property
    def usage(self) -> Usage:
        first = self.choices[0].sequence
        return Usage(first.num_prompt, self._num_output, first.num_cached)

    def note_prompt(self, first: int, scores: list[TokenLogprob]) -> None:
        """Log probabilities of tokens of the prompt from place `first` on; who was preempted tells some again."""
        self._prompt_logprobs[first : first + len(scores)] = scores

    def tell(self, choice: Choice, grown: StepOutput, *, is_first: bool) -> None:
        """A choice has grown; `is_first`: it was empty before."""
        self._num_output += len(grown.tokens)
        if grown.finish_reason is not None:
            self._num_unfinished -= 1
        if self._held is not None:
            self._hold(choice, grown)
            return
        self._send(
            Output(
                choice.sequence.choice,
                grown.text,
                tuple(grown.tokens),
                grown.logprobs,
                grown.finish_reason,
                grown.stop,
                self.usage,
                self.is_finished,
                cumulative_logprob=choice.cumulative_logprob,
                prompt_logprobs=self._prompt_scores() if is_first and not choice.sequence.choice else (),
            )
        )

    def end(self, choice: Choice, reason: FinishReason, error: str = "") -> None:
        """A choice ends before its time."""
        self._num_unfinished -= 1
        if self.beams is not None:
            if self.is_finished:
                self._send(Output(0, finish_reason=reason, usage=self.usage, is_final=True, error=error))
            return
        if self._held is not None:
            self._held[choice.sequence.choice].finish_reason = reason
            if self.is_finished:
                self._tell_best(error)
            return
        self._send(
            Output(
                choice.sequence.choice,
                choice.rest(),
                finish_reason=reason,
                usage=self.usage,
                is_final=self.is_finished,
                error=error,
                cumulative_logprob=choice.cumulative_logprob,
            )
        )

    def tell_beams(self, decode: Callable[[tuple[int, ...]], str]) -> None:
        """The search is done: its best answers, whole."""
        assert self.beams is not None
        self._num_unfinished = 0
        best = self.beams.best(self.request.params.n)
        self._num_output = sum(len(each.tokens) for each in best)
        for place, each in enumerate(best):
            self._send(
                Output(
                    place,
                    decode(each.tokens),
                    each.tokens,
                    finish_reason=FinishReason.STOP if each.has_ended else FinishReason.LENGTH,
                    usage=self.usage,
                    is_final=place == len(best) - 1,
                    cumulative_logprob=each.logprob,
                    prompt_logprobs=self._prompt_scores() if not place else (),
                )
            )

    def _prompt_scores(self) -> tuple[TokenLogprob | None, ...]:
        return tuple(self._prompt_logprobs) if self.request.params.prompt_logprobs is not None else ()

    def _hold(self, choice: Choice, grown: StepOutput) -> None:
        assert self._held is not None
        held = self._held[choice.sequence.choice]
        held.text.append(grown.text)
        held.tokens += grown.tokens
        held.logprobs += grown.logprobs
        held.finish_reason, held.stop = grown.finish_reason, grown.stop
        if self.is_finished:
            self._tell_best("")

    def _tell_best(self, error: str) -> None:
        """Of all answers, those of the highest log probability a token; a failed one comes last."""
        assert self._held is not None
        held = self._held
        whole = (FinishReason.STOP, FinishReason.LENGTH)

        def rank(index: int) -> tuple[bool, float]:
            mean = self.choices[index].cumulative_logprob / max(1, len(held[index].tokens))
            return held[index].finish_reason not in whole, -mean

        best = sorted(range(len(held)), key=rank)[: self.request.params.n]
        for place, index in enumerate(best):
            each = held[index]
            self._send(
                Output(
                    place,
                    "".join(each.text),
                    tuple(each.tokens),
                    tuple(each.logprobs),
                    each.finish_reason,
                    each.stop,
                    self.usage,
                    place == len(best) - 1,
                    error if each.finish_reason not in whole else "",
                    self.choices[index].cumulative_logprob,
                    self._prompt_scores() if not place else (),
                )
            )

    def _send(self, output: Output) -> None:
        try:
            self._listener(output)
        except Exception:  # one listener's fault is not the others'
            logger.exception("the listener of request %s failed", self.request.id)
