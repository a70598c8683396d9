"""Logprobs in the form of OpenAI's completions and in that of its chat completions, which is the canonical one.

    completions: {tokens: [t], token_logprobs: [x], top_logprobs: [{t: x}] or null, text_offset: [n]}
    chat:        [{token: t, logprob: x, bytes: [b] or null, top_logprobs: [{token: t, logprob: x, bytes: [b]}]}]

Source: OpenAI API reference, "logprobs" of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.protocol.llm.request_fields import Fields

__all__ = ["from_completions", "to_completions"]

# Stands for what a tokenizer could not decode.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def from_completions(told: Any) -> list[Fields] | None:
    """The canonical form; None where there is none. llama.cpp tells chat's form in completions too (`content`)."""
    if not isinstance(told, dict):
        return None
    if isinstance(told.get("content"), list):
        return list(told["content"])
    tokens, logprobs, tops = (_list(told.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    found = []
    for at, token in enumerate(tokens):
        top = tops[at] if at < len(tops) else None
        alternatives = [_one(other, value) for other, value in top.items()] if isinstance(top, dict) else []
        logprob = logprobs[at] if at < len(logprobs) else None
        found.append({**_one(str(token), logprob), "top_logprobs": alternatives})
    return found or None


def to_completions(told: Sequence[Mapping[str, Any]], offset: int) -> tuple[Fields, int]:
    """The form of completions, and the offset of what follows. Offsets count characters of the reply's text."""
    tokens, logprobs, offsets = [], [], []
    tops: list[dict[str, Any]] = []
    for one in told:
        token = one.get("token") or ""
        tokens.append(token)
        logprobs.append(one.get("logprob"))
        tops.append({top.get("token") or "": top.get("logprob") for top in one.get("top_logprobs") or ()})
        offsets.append(offset)
        offset += len(token)
    fields = {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": tops if any(tops) else None,
        "text_offset": offsets,
    }
    return fields, offset


def _one(token: str, logprob: Any) -> Fields:
    """Bytes are told where they are known: a token of part of a character is not decoded."""
    return {"token": token, "logprob": logprob, "bytes": None if _REPLACEMENT in token else list(token.encode())}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
