"""The engine's interface: requests, their sampling parameters, and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """The form of a text: `kind` is json_schema (a schema as text), json_object (any JSON object), regex, choice (a
    JSON list of texts as text) or lark (llguidance's grammar)."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Fields at their defaults have no effect. `read_params` builds and checks it from a request's fields."""

    max_tokens: int = 16
    min_tokens: int = 0  # neither EOS nor stop tokens come before
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
    logprobs: int | None = None  # number of alternatives beside each token; None: no log probabilities
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None  # None: n
    beam_width: int = 0  # beams of a beam search; 0: sampling
    length_penalty: float = 1.0
    early_stopping: bool = False
    seed: int | None = None  # None: random
    grammar: GrammarSpec | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_likeliest(self) -> int:
        """How many of the likeliest tokens must be known at each place: for logprobs, and for beams."""
        return max(self.logprobs or 0, 2 * self.beam_width)

    @property
    def needs_logprobs(self) -> bool:
        """Whether each token's log probability must be known."""
        return self.logprobs is not None or (self.best_of or 0) > self.n

    def end_ids(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """The tokens that end a text."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else eos_ids)


class FinishReason(Enum):
    """Why a choice has ended."""

    STOP = "stop"  # an end-of-text token, a stop token, a stop string, or a complete grammar
    LENGTH = "length"  # max_tokens, or the model's context is full
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt. `deadline` is of time.monotonic(); `adapter` a LoRA adapter's name; requests of different
    `cache_salt` never share cached blocks; a higher `priority` goes first."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    deadline: float | None = None
    adapter: str | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log probability, and the likeliest ones at its place: (token id, log probability), falling."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request so far, over all choices; `cached` prompt tokens needed no prefill."""

    prompt: int
    completion: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """An addition to one choice. `text` excludes what may still become a stop string, and bytes of an unfinished
    character. `stop` is the stop string or token that ended the choice. The last output of the last choice has
    `is_final`; `error` is set on a failure."""

    choice: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    usage: Usage = Usage(0, 0)
    is_final: bool = False
    error: str = ""
    cumulative_logprob: float = 0.0
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()  # in a choice's first output, where requested


# Called on the engine's thread: it must neither block nor raise.
Listener = Callable[[Output], None]
