"""Log probabilities as OpenAI's chat completions tell them."""

from __future__ import annotations

from typing import Any

from engines.paged.api_types import TokenLogprob
from engines.paged.text.tokenizer import Tokenizer

# JSON has no infinities; OpenAI's own number for what could not have come.
_IMPOSSIBLE = -9999.0


def told_logprob(tokenizer: Tokenizer, told: TokenLogprob) -> dict[str, Any]:
    """{token, logprob, bytes, top_logprobs}: each token with its text, in which bytes that are no character alone are
    U+FFFD, and its bytes."""
    alternatives = [_entry(tokenizer, token_id, logprob) for token_id, logprob in told.top]
    return {**_entry(tokenizer, told.token_id, told.logprob), "top_logprobs": alternatives}


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    written = tokenizer.token_bytes(token_id)
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": max(logprob, _IMPOSSIBLE),
        "bytes": list(written),
    }
