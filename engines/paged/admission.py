"""Checks requests, and prepares them for the scheduler."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from itertools import count

from engines.core.errors import invalid
from engines.paged.base.types import GenerateRequest, Listener, SamplingParams
from engines.paged.builder import Parts
from engines.paged.generation.beams import BeamSearch
from engines.paged.generation.generation import BeamGeneration, BestOfGeneration, Choice, Generation
from engines.paged.generation.speculation import Drafter, NgramDrafter, NgramIndex
from engines.paged.sampling.grammar import Matcher
from engines.paged.scheduling.sequence import Sequence
from engines.paged.text.stream import TextStream

_SEED_BYTES = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_NOT_WITH_BEAMS = (
    *("stop", "grammar", "min_tokens", "logit_bias", "bad_words", "logprobs"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
_NOTHING = SamplingParams()


class Admission:
    """May be called on any thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._arrivals = count(1)

    def generation(self, request: GenerateRequest, listener: Listener) -> Generation:
        """A request ready to be scheduled.

        Raises: EngineError where it cannot be served: the field, and what is allowed.
        """
        parts = self._parts
        request = self._checked(request)
        params = request.params
        beams = self._beams(params)
        matcher = parts.grammars.compile(params.grammar) if params.grammar is not None else None
        arrival = next(self._arrivals)
        choices = []
        for index in range(beams.width if beams is not None else max(params.n, params.best_of or 0)):
            sequence = Sequence(request, index, arrival, parts.options.block_size)
            own = matcher if matcher is None or not index else matcher.fork()
            drafter = self._drafter(own) if beams is None else None
            sequence.sampling = parts.batches.admit(sequence, params, _seed_of(params.seed, index), own)
            sequence.needs_host = sequence.sampling.needs_host or drafter is not None or beams is not None
            choices.append(Choice(sequence, TextStream(parts.tokenizer, params), parts.eos_ids, drafter))
        arrived = time.monotonic()
        if beams is not None:
            return BeamGeneration(request, choices, listener, arrived, beams, parts.tokenizer.decode)
        kind = BestOfGeneration if len(choices) > params.n else Generation
        return kind(request, choices, listener, arrived)

    def _checked(self, request: GenerateRequest) -> GenerateRequest:
        """The request, with `max_tokens` bounded by the context."""
        prompt, params, max_context = request.prompt, request.params, self._parts.max_context
        if not prompt:
            raise invalid("the prompt is empty: it must have at least one token")
        vocabulary = self._parts.config.vocab_size
        tokens = {"prompt": prompt, "logit_bias": params.logit_bias, "stop_token_ids": params.stop_token_ids}
        for where, ids in tokens.items():
            wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
            if wrong is not None:
                raise invalid(f"{where}: {wrong} is no token of this model, whose ids are 0 .. {vocabulary - 1}")
        if len(prompt) >= max_context:
            raise invalid(
                f"the prompt has {len(prompt)} tokens, and the context holds {max_context}, the answer included: "
                "shorten the prompt, or serve with a larger max_context"
            )
        adapters = self._parts.options.adapters
        if request.adapter is not None and request.adapter not in adapters:
            loaded = ", ".join(sorted(adapters)) or "none"
            raise invalid(f"adapter '{request.adapter}' is not loaded; loaded are: {loaded}")
        room = max_context - len(prompt)
        return replace(request, params=replace(params, max_tokens=min(params.max_tokens, room)))

    def _beams(self, params: SamplingParams) -> BeamSearch | None:
        width, seats = params.beam_width, self._parts.options.max_sequences
        if width < 2:
            return None
        for field in _NOT_WITH_BEAMS:
            # The folder's recommendations are meant for sampling: the request did not set them.
            if getattr(params, field) not in (getattr(_NOTHING, field), getattr(self._parts.default_params, field)):
                raise invalid(f"{field}: beam search has no place for it; sample instead (beam_width 0)")
        if params.n > width:
            raise invalid(f"n: {params.n} answers are more than {width} beams (beam_width) can give")
        if width > seats:
            raise invalid(f"beam_width: {width} is more than the engine's {seats} seats")
        stop_ids = params.end_ids(self._parts.eos_ids)
        penalty, stops_early = params.length_penalty, params.early_stopping
        return BeamSearch(width, params.max_tokens, stop_ids, length_penalty=penalty, early_stopping=stops_early)

    def _drafter(self, matcher: Matcher | None) -> Drafter | None:
        options = self._parts.options
        speculation = options.speculation
        if speculation is None or options.deterministic:
            return None
        if speculation.method == "draft":
            return Drafter(speculation.num_tokens)
        return NgramDrafter(speculation.num_tokens, NgramIndex(speculation.ngram_min, speculation.ngram_max), matcher)


def _seed_of(seed: int | None, choice: int) -> int:
    """The first choice has the request's own seed."""
    if seed is None:
        return int.from_bytes(os.urandom(_SEED_BYTES), "little")
    return (seed + choice * _GOLDEN) & _MASK
