"""What goes into the engine and what comes out of it, for all who stand above it (the backend of the host, the
bench)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from engines.paged.sampling.params import SamplingParams


class FinishReason(Enum):
    """Why a choice has ended."""

    STOP = "stop"  # an end-of-text token, a stop token or a stop text, or the grammar is complete
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
    """One token, its log probability, and the likeliest ones at its place: (token id, log probability), falling."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request so far, over all its choices; `cached` are those of the prompt that needed no prefill."""

    prompt: int
    completion: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """More of one choice. `text` is what may be told already: text that may become a stop text is held back, and
    bytes of an unfinished character too. `stop` is the stop text or token that ended it. The last output of a
    request's last choice has `is_final`; `error` is set where it failed."""

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
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()  # in a choice's first output, where asked for


# Called on the engine's thread: it must not block, nor raise.
Listener = Callable[[Output], None]
