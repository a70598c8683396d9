"""Log probabilities in the form of Triton's vLLM backend: JSON, for each token {id: {logprob, rank, decoded_token}}.

Source: Triton's vLLM backend, `docs/additional_outputs.md`; vLLM `logprobs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import orjson

from engines.paged.api_types import TokenLogprob

_MAX_TOKENS = 65536
# JSON has no infinity: what cannot come is told as vLLM tells it.
_LEAST = -9999.0


class LogprobWriter:
    """Of one model: `bytes_of` tells a token's bytes, by its id."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._decoded = lru_cache(_MAX_TOKENS)(lambda token_id: _decoded(bytes_of(token_id)))

    def write(self, tokens: Sequence[TokenLogprob]) -> str:
        """A token's own stands first, then the likeliest at its place. The rank of one that is not among these is the
        highest that it can have: one more than they are."""
        return orjson.dumps([self._token(token) for token in tokens]).decode()

    def write_prompt(self, first: int, tokens: Sequence[TokenLogprob | None]) -> str:
        """Those of a prompt that begins with the token `first`, which nothing foretells."""
        alone = {str(first): {"logprob": None, "rank": None, **self._decoded(first)}}
        told = [alone if token is None else self._token(token) for token in tokens]
        return orjson.dumps(told).decode()

    def _token(self, token: TokenLogprob) -> dict[str, Any]:
        ranks = {token_id: rank for rank, (token_id, _) in enumerate(token.top, 1)}
        own = token.token_id
        told = {str(own): self._one(own, token.logprob, ranks.get(own, len(token.top) + 1))}
        for token_id, logprob in token.top:
            if token_id != own:
                told[str(token_id)] = self._one(token_id, logprob, ranks[token_id])
        return told

    def _one(self, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": max(logprob, _LEAST), "rank": rank, **self._decoded(token_id)}


def _decoded(data: bytes) -> dict[str, Any]:
    """Its text; its bytes too where they are a part of a character, of which there is no text."""
    try:
        return {"decoded_token": data.decode()}
    except UnicodeDecodeError:
        return {"decoded_token": data.decode("utf-8", "replace"), "bytes": list(data)}
