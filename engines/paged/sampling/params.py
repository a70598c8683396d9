"""What a request asks of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What the text must be: `kind` is json_schema (a schema as text), json_object (any JSON object), regex, choice
    (a JSON list of texts as text) or lark (llguidance's grammar)."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Fields that are at their defaults ask for nothing. `read_params` makes one of a request's fields, and checks
    it."""

    max_tokens: int = 16
    min_tokens: int = 0  # before that neither EOS nor stop tokens may come
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # how many alternatives are told beside each token; None: no log probabilities
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None  # None: n
    beam_width: int = 0  # beams of a beam search; 0: sampling
    length_penalty: float = 1.0
    early_stopping: bool = False
    seed: int | None = None  # None: the engine draws one
    grammar: GrammarSpec | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_likeliest(self) -> int:
        """How many of the likeliest tokens must be known at each place: for logprobs, and for beams."""
        return max(self.logprobs or 0, 2 * self.beam_width)

    @property
    def needs_logprobs(self) -> bool:
        """Whether each token's own log probability must be known."""
        return self.logprobs is not None or (self.best_of or 0) > self.n
