"""Why a request goes to a fallback engine: what errors and error replies say of the engine.

Sources of the texts: OpenAI's and Azure's error codes (`context_length_exceeded`, `content_filter`,
`content_policy_violation`, `model_not_found`); Anthropic's "prompt is too long"; vLLM's "maximum context length" and
"longer than the maximum model length"; SGLang's "longer than the model's context length"; llama.cpp's
`exceed_context_size_error`; TGI's "`inputs` tokens + `max_new_tokens` must be"; TensorRT-LLM's "exceeds maximum input
length"; Gemini's "exceeds the maximum number of tokens allowed"; Mistral's and xAI's "too large for model" and "maximum
prompt length"; `engines/paged/admission.py`; Triton's "Request for unknown model".
"""

from __future__ import annotations

import re
from enum import Enum

from gateway.protocol.errors import ErrorKind


class FallbackReason(Enum):
    """What makes a request go to a fallback engine, in the words of rule files (`on:`)."""

    DOWN = "down"  # no endpoint is healthy, reachable, or keeps the connection until it answers
    OVERLOADED = "overloaded"  # too many requests wait for a connection, or the engine answers 503
    DEADLINE = "deadline"  # no byte of a reply came in time
    SERVER_ERROR = "5xx"
    RATE_LIMITED = "429"
    CONTEXT_LENGTH = "context_length"  # the prompt is too long for the model
    CONTENT_FILTER = "content_filter"  # the prompt is refused for its content
    MODEL_NOT_FOUND = "model_not_found"


# Where the rules name none: what says nothing of the request itself.
DEFAULT_REASONS = (
    FallbackReason.DOWN,
    FallbackReason.OVERLOADED,
    FallbackReason.DEADLINE,
    FallbackReason.SERVER_ERROR,
    FallbackReason.RATE_LIMITED,
)

Reasons = tuple[FallbackReason, ...]
NO_REASONS: Reasons = ()
DOWN: Reasons = (FallbackReason.DOWN,)

_OF_ERRORS: dict[ErrorKind, Reasons] = {
    ErrorKind.NO_HEALTHY_ENDPOINT: (FallbackReason.DOWN,),
    ErrorKind.UPSTREAM_CONNECT: (FallbackReason.DOWN,),
    ErrorKind.UPSTREAM_RESET: (FallbackReason.DOWN,),
    ErrorKind.OVERLOADED: (FallbackReason.OVERLOADED,),
    ErrorKind.DEADLINE: (FallbackReason.DEADLINE,),
    ErrorKind.NOT_FOUND: (FallbackReason.MODEL_NOT_FOUND,),  # no endpoint lists the model
}
# Failures after which the engine may have done what was asked.
_MAY_HAVE_RUN = frozenset({ErrorKind.UPSTREAM_RESET, ErrorKind.DEADLINE})

_OF_STATUSES: dict[int, Reasons] = {
    404: (FallbackReason.MODEL_NOT_FOUND,),
    429: (FallbackReason.RATE_LIMITED,),
    503: (FallbackReason.OVERLOADED, FallbackReason.SERVER_ERROR),
}
_OF_SERVER_ERRORS: Reasons = (FallbackReason.SERVER_ERROR,)
# Statuses whose text may say that it is the prompt: 413 of a few gateways, 422 of TGI, 500 of Triton's models.
_OF_TEXTS = frozenset({400, 404, 413, 422, 500, 503})
_TEXTS: tuple[tuple[FallbackReason, re.Pattern[bytes]], ...] = (
    (
        FallbackReason.CONTEXT_LENGTH,
        re.compile(
            rb"context_length_exceeded|exceed_context_size|exceeds? the available context size|exceed context limit"
            rb"|model.{0,8}s? maximum (?:context|prompt) (?:length|limit)|maximum context length"
            rb"|longer than the (?:maximum model length|model.{1,8}s context length)"
            rb"|prompt is too long|inputs. tokens \+ .max_new_tokens. must be|exceeds? (?:the )?maximum input length"
            rb"|exceeds? the maximum (?:allowed )?(?:number of tokens allowed|input length)"
            rb"|input tokens exceed the configured limit|please reduce the length of the (?:messages|prompt)"
            rb"|tokens, and the context holds",
            re.IGNORECASE,
        ),
    ),
    (
        FallbackReason.CONTENT_FILTER,
        re.compile(
            rb'"content_filter"|content_policy_violation|ResponsibleAIPolicyViolation|content management policy'
            rb"|content filtering policy|result of our safety system|violating our usage policy",
            re.IGNORECASE,
        ),
    ),
    (
        FallbackReason.MODEL_NOT_FOUND,
        re.compile(rb"model_not_found|request for unknown model|the model [^ ]{1,200} does not exist", re.IGNORECASE),
    ),
)
# An error where the first token of a stream should be (vLLM, SGLang): its status is in the event.
_ERROR_EVENT = re.compile(rb'"error" ?: ?[{"]|^event: ?error', re.MULTILINE)
_STATUS_IN_EVENT = re.compile(rb'"code" ?: ?"?([45][0-9][0-9])\b')
# Of an error reply, what is searched.
_MAX_TEXT = 8192


def reasons_of_error(kind: ErrorKind, *, is_idempotent: bool) -> Reasons:
    """What a failure without a reply may be a reason for; `is_idempotent`: the request does no harm twice."""
    if kind in _MAY_HAVE_RUN and not is_idempotent:
        return NO_REASONS
    return _OF_ERRORS.get(kind, NO_REASONS)


def status_of_events(text: bytes) -> int:
    """The status of a stream's first events: 200, or that of the error in them."""
    if not _ERROR_EVENT.search(text, 0, _MAX_TEXT):
        return 200
    status = _STATUS_IN_EVENT.search(text, 0, _MAX_TEXT)
    return 500 if status is None else int(status[1])


def reasons_of_reply(status: int, text: bytes, *, is_idempotent: bool) -> Reasons:
    """The same of an engine's error reply with this HTTP status. 503 and 429 promise that the request was not begun,
    other 5xx do not."""
    if status < 400:
        return NO_REASONS
    found = NO_REASONS
    if status in _OF_TEXTS:
        found = tuple(reason for reason, pattern in _TEXTS if pattern.search(text, 0, _MAX_TEXT))
    if status in _OF_STATUSES:
        return found + _OF_STATUSES[status]
    return found + _OF_SERVER_ERRORS if status >= 500 and is_idempotent else found
