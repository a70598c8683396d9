"""Responses of a request: one after another where it streams, else one at the end.

A streamed response has one choice, named by the parameter `sequence_index` where there are several. Log probabilities
are in the form of Triton's vLLM backend.
Source: Triton's vLLM backend, `src/utils/request.py` (create_response), `docs/additional_outputs.md`; TensorRT-LLM's
`sequence_index`; vLLM `logprobs.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from engines.backends.interfaces import BackendRequest
from engines.backends.paged.request_parser import ParsedRequest
from engines.core.datatypes import Array
from engines.core.errors import EngineError, ErrorCode, internal
from engines.paged.base.types import FinishReason, Output, TokenLogprob, Usage

_log = logging.getLogger(__name__)

# Sent with their tokens.
_OF_TOKENS = frozenset({"logprobs", "prompt_logprobs", "token_ids"})
_FAILED = (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.ERROR)


@dataclass(slots=True)
class _Unsent:
    """The unsent part of a choice."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    cumulative_logprob: float = 0.0
    num_tokens: int = 0  # not yet counted in a response

    def add(self, output: Output) -> None:
        self.texts.append(output.text)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.num_tokens += len(output.token_ids)
        self.finish_reason, self.stop = output.finish_reason, output.stop
        self.cumulative_logprob = output.cumulative_logprob

    def take_text(self) -> str:
        text = "".join(self.texts)
        self.texts.clear()
        return text


class ResponseStream:
    """The engine's listener of one request, called on the engine's thread: it neither blocks nor raises."""

    def __init__(
        self,
        request: BackendRequest,
        parsed: ParsedRequest,
        *,
        num_choices: int,
        prompt: str,
        logprobs: LogprobWriter,
        first_token: int = 0,
    ) -> None:
        """`prompt` precedes each choice's text, "" where it is not repeated; `first_token` is the prompt's."""
        self._request = request
        self._streams = parsed.streams
        self._output_names = parsed.outputs
        self._deferred = parsed.outputs - _OF_TOKENS if parsed.defers_outputs else frozenset()
        self._logprobs = logprobs
        self._prompt = prompt
        self._choices = [_Unsent() for _ in range(num_choices)]
        self._first_token = first_token
        self._prompt_scores: Sequence[TokenLogprob | None] = ()  # unsent
        self._error_of: EngineError | None = None

    def __call__(self, output: Output) -> None:
        try:
            self._take(output)
        except Exception as error:  # other requests go on
            _log.exception("request %r gets no answer", self._request.id)
            with suppress(Exception):  # the host has ended
                self._request.fail(internal(f"the answer cannot be told: {type(error).__name__}: {error}"))

    def _take(self, output: Output) -> None:
        if output.finish_reason in _FAILED:
            self._error_of = self._error_of or _error_of(output)
        else:
            self._prompt_scores = output.prompt_logprobs or self._prompt_scores
            self._choices[output.choice].add(output)
            if self._streams and self._error_of is None:
                self._send_more(output)
                return
        if not output.is_final:
            return
        if self._error_of is not None:
            self._request.fail(self._error_of)
        else:
            self._request.respond(self._outputs(self._choices, self._output_names, output.usage))

    def _send_more(self, output: Output) -> None:
        choice = self._choices[output.choice]
        names = self._output_names if output.finish_reason is not None else self._output_names - self._deferred
        outputs = self._outputs((choice,), names, output.usage)
        parameters = {"sequence_index": output.choice} if len(self._choices) > 1 else None
        self._request.respond(outputs, is_final=output.is_final, parameters=parameters)
        choice.token_ids.clear()
        choice.logprobs.clear()
        self._prompt_scores = ()
        if "num_output_tokens" in names:
            choice.num_tokens = 0

    def _outputs(self, choices: Sequence[_Unsent], names: frozenset[str], usage: Usage) -> dict[str, Array]:
        outputs = {"text_output": _texts([self._prompt + choice.take_text() for choice in choices])}
        for name in names:
            if name != "prompt_logprobs" or self._prompt_scores:
                outputs[name] = self._output(name, choices, usage)
        return outputs

    def _output(self, name: str, choices: Sequence[_Unsent], usage: Usage) -> Array:
        match name:
            case "finish_reason":
                reasons = [choice.finish_reason for choice in choices]
                return _texts([str(None if reason is None else reason.value) for reason in reasons])
            case "stop_reason":
                return _texts([str(choice.stop) for choice in choices])
            case "cumulative_logprob":
                return np.array([choice.cumulative_logprob for choice in choices], np.float32)
            case "logprobs":
                return _texts([self._logprobs.write(choice.logprobs) for choice in choices])
            case "prompt_logprobs":
                return _texts([self._logprobs.write_prompt(self._first_token, self._prompt_scores)])
            case "token_ids":
                return _texts([str(choice.token_ids) for choice in choices])
            case "num_output_tokens":
                return np.array([choice.num_tokens for choice in choices], np.uint32)
            case "num_cached_tokens":
                return np.array([usage.cached], np.uint32)
            case _:
                assert name == "num_input_tokens", name
                return np.array([usage.prompt], np.uint32)


def counted(prompt: Sequence[int], names: frozenset[str]) -> dict[str, Array]:
    """The outputs of a request that only counts the tokens of its prompt, and lists them where `token_ids` is one."""
    outputs = {"text_output": _texts([""]), "num_input_tokens": np.array([len(prompt)], np.uint32)}
    return outputs | {"token_ids": _texts([str(list(prompt))])} if "token_ids" in names else outputs


def _texts(texts: Sequence[str]) -> Array:
    array: Array = np.empty(len(texts), object)
    array[:] = [text.encode("utf-8", "replace") for text in texts]
    return array


def _error_of(output: Output) -> EngineError:
    match output.finish_reason:
        case FinishReason.CANCELLED:
            return EngineError(ErrorCode.CANCELLED, "inference request is cancelled")
        case FinishReason.DEADLINE:
            what = f"Request timeout expired after {output.usage.completion} tokens"
            return EngineError(ErrorCode.UNAVAILABLE, what)
        case _:
            return internal(output.error or "the engine has failed")


_MAX_TOKENS = 65536
# JSON has no infinity: vLLM's number for an impossible token.
_LEAST = -9999.0


class LogprobWriter:
    """Log probabilities as JSON; `bytes_of` returns a token's bytes."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._decoded = lru_cache(_MAX_TOKENS)(lambda token_id: _decoded(bytes_of(token_id)))

    def write(self, tokens: Sequence[TokenLogprob]) -> str:
        """Each token itself comes first, then the likeliest at its place. The rank of a token outside these is one more
        than they are."""
        return orjson.dumps([self._token(token) for token in tokens]).decode()

    def write_prompt(self, first: int, tokens: Sequence[TokenLogprob | None]) -> str:
        """Those of a prompt whose first token is `first`, which has none."""
        alone = {str(first): {"logprob": None, "rank": None, **self._decoded(first)}}
        entries = [alone if token is None else self._token(token) for token in tokens]
        return orjson.dumps(entries).decode()

    def _token(self, token: TokenLogprob) -> dict[str, Any]:
        ranks = {token_id: rank for rank, (token_id, _) in enumerate(token.top, 1)}
        own = token.token_id
        entries = {str(own): self._one(own, token.logprob, ranks.get(own, len(token.top) + 1))}
        for token_id, logprob in token.top:
            if token_id != own:
                entries[str(token_id)] = self._one(token_id, logprob, ranks[token_id])
        return entries

    def _one(self, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": max(logprob, _LEAST), "rank": rank, **self._decoded(token_id)}


def _decoded(data: bytes) -> dict[str, Any]:
    """A token's text; also its bytes where they are part of a character."""
    try:
        return {"decoded_token": data.decode()}
    except UnicodeDecodeError:
        return {"decoded_token": data.decode("utf-8", "replace"), "bytes": list(data)}
