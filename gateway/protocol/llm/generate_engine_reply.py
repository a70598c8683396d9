"""What a V2 engine answers to `generate` and `generate_stream`, as events.

An event of the stream is one reply of the model: the text since the last one, for each choice, and beside it what was
asked to be told. Nothing tells that a reply is the last but that the stream ends.
Source: see `generate_engine_request`; vllm_backend `docs/additional_outputs.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import orjson

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.errors import read_error
from gateway.protocol.conversion.sse import SseReader
from gateway.protocol.llm.canonical import EngineFailed, Event, Finished, Generation, Started, TextDelta, TokenUsage
from gateway.protocol.llm.generate_engine_request import GenerateConvention, GenerateSignature
from gateway.protocol.llm.json_fields import misunderstood, text_of

# Python's None as text: the choice goes on.
_GOES_ON = (None, "None", "")
_REASONS = {"length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


class GenerateReplyReader:
    """Reads one reply, streamed (`feed`, `end`) or whole.

    Raises: GatewayError(UPSTREAM_PROTOCOL) for what cannot be understood.
    """

    def __init__(self, generation: Generation, signature: GenerateSignature) -> None:
        self._generation = generation
        self._signature = signature
        self._output = signature.text_output
        self._sse = SseReader()
        has_echo = generation.options.get("echo") and isinstance(generation.prompt, str)
        self._echo = generation.prompt if has_echo else ""
        self._is_simple = not signature.cumulative and generation.options.get("n", 1) == 1
        self._has_reason = {"return_finish_reason", "finish_reason"} <= signature.inputs | signature.outputs
        self._begun = self._goes_on = self._failed = False
        self._before: dict[int, str] = {}  # by choice: what it has said; of a cumulative stream alone
        self._ended: dict[int, bool] = {}  # choices that have begun: whether they are whole
        self._prompt_tokens = self._completion_tokens = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes of the stream complete."""
        if data[:6] == b"data: " and data.find(b"\n") == len(data) - 2 and data[-1] == 10 and not self._sse.num_waiting:
            payloads = [data[6:-2]]  # the usual case: one event, whole
        else:
            payloads = self._sse.feed(data)
        events: list[Event] = []
        for payload in payloads:
            self._read(_parsed(payload), events)
        return events

    def end(self) -> list[Event]:
        """What the end of the stream says; nothing where it has broken off: in the middle of an event, or before the
        reason that the engine was asked to tell."""
        is_whole = bool(self._ended) and all(self._ended.values())
        if self._failed or self._sse.num_waiting or (self._has_reason and not is_whole):
            return []
        events: list[Event] = [] if self._begun else [Started()]
        # By the tokens, where the engine tells no reason.
        limit = self._generation.options.get("max_tokens")
        is_full = isinstance(limit, int) and len(self._ended) == 1 and self._completion_tokens >= limit > 0
        reason = "length" if is_full else "stop"
        events += [Finished(reason, index) for index, ended in (self._ended or {0: False}).items() if not ended]
        if self._prompt_tokens or self._completion_tokens:
            events.append(TokenUsage(self._prompt_tokens, self._completion_tokens))
        return events

    def whole(self, status: int, body: bytes) -> list[Event]:
        """The events of a reply that came in one piece; a failure of any kind is one Failed."""
        if status >= 400:
            payloads = SseReader().feed(body)  # a stream that fails at once is told as one event
            return [EngineFailed(read_error(payloads[0] if payloads else body)[0], status)]
        reply = _parsed(body)
        if self._signature.repeats_prompt and isinstance(self._generation.prompt, str):
            reply[self._output] = _without_prompt(reply.get(self._output), self._generation.prompt)
        events: list[Event] = []
        self._read(reply, events)
        return events + self.end()

    def _read(self, reply: Mapping[str, Any], events: list[Event]) -> None:
        text = reply.get(self._output)
        if self._goes_on and type(text) is str and "logprobs" not in reply:  # the usual case: more of the only choice
            if text:
                events.append(TextDelta(text))
        elif text is None and isinstance(error := reply.get("error"), str):
            self._failed, self._goes_on = True, False
            events.append(EngineFailed(error))
            return
        else:
            self._read_choices(text, reply, events)
        reasons = reply.get("finish_reason")
        if reasons not in _GOES_ON:
            reasons = _listed(reasons)
            fields = zip_longest(reasons, _listed(reply.get("stop_reason")))
            for index, (reason, ended_by) in enumerate(fields, _first_choice(reasons, reply)):
                self._finish(reason, ended_by, index, events)
        tokens = reply.get("num_output_tokens")
        if tokens is not None:
            self._completion_tokens += tokens if type(tokens) is int else _sum(tokens)
            self._prompt_tokens = _sum(reply.get("num_input_tokens")) or self._prompt_tokens

    def _read_choices(self, text: Any, reply: Mapping[str, Any], events: list[Event]) -> None:
        if not self._begun:
            self._begun = True
            self._goes_on = self._is_simple
            events.append(Started(text_of(reply.get("id")), text_of(reply.get("model_name"))))
        texts = text if type(text) is list else (text,)
        logprobs = reply.get("logprobs") if self._signature.kind is GenerateConvention.VLLM else None
        for index, (piece, fields) in enumerate(zip_longest(texts, _listed(logprobs)), _first_choice(texts, reply)):
            self._add(piece, index, fields, events)

    def _add(self, text: Any, index: int, logprobs: Any, events: list[Event]) -> None:
        if text is None:
            text = ""
        elif type(text) is not str:
            raise misunderstood(f"'{self._output}' is no text")
        if self._signature.cumulative:
            before, self._before[index] = self._before.get(index, ""), text
            text = text[len(before) :]  # even where it begins otherwise: what was told stays told
        if index not in self._ended:
            self._ended[index] = False
            text = self._echo + text
        if text:
            read = None if logprobs is None else read_logprobs(logprobs, self._generation.options.get("logprobs", 0))
            events.append(TextDelta(text, index, read))

    def _finish(self, reason: Any, ended_by: Any, index: int, events: list[Event]) -> None:
        if reason not in _GOES_ON and not self._ended.get(index):
            self._ended[index] = True
            is_text = isinstance(ended_by, str) and ended_by not in _GOES_ON and not ended_by.isdecimal()
            events.append(Finished(_REASONS.get(str(reason), "stop"), index, ended_by if is_text else None))


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:  # Triton writes NaN too, and bytes of a character that is not whole
        try:
            reply = triton_json.read(body.decode("utf-8", "replace").encode())
        except ValueError as error:
            raise misunderstood(f"it is no JSON: {error}") from None
    if type(reply) is not dict:
        raise misunderstood("it is no JSON object")
    return reply


def _listed(value: Any) -> Sequence[Any]:
    return value if type(value) is list else () if value is None else (value,)


def _sum(counts: Any) -> int:
    return sum([count for count in _listed(counts) if type(count) is int])


def _first_choice(values: Sequence[Any], reply: Mapping[str, Any]) -> int:
    """TensorRT-LLM tells choices one by one."""
    index = reply.get("sequence_index", 0) if len(values) == 1 else 0
    return index if type(index) is int and index >= 0 else 0


def _without_prompt(text: Any, prompt: str) -> Any:
    """The text behind the prompt. A tokenizer may lose the spaces around it, and then those are not looked at."""
    if isinstance(text, list):
        return [_without_prompt(each, prompt) for each in text]
    if not isinstance(text, str):
        return text
    for begin in (prompt, prompt.rstrip(), prompt.lstrip(), prompt.strip()):
        if begin and text.startswith(begin):
            return text[len(begin) :]
    return text


def read_logprobs(fields: Any, alternatives: int) -> list[dict[str, Any]] | None:
    """OpenAI's chat form of the vLLM backend's: a JSON text, for each token {id: {logprob, rank, decoded_token}}, of
    which the first is the token itself."""
    try:
        tokens = [list(token.values()) for token in orjson.loads(fields) or ()]
        return [
            _token(token[0])
            | {"top_logprobs": [_token(each) for each in sorted(token, key=_rank) if _rank(each) <= alternatives]}
            for token in tokens
        ] or None
    except (orjson.JSONDecodeError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise misunderstood(f"its 'logprobs' cannot be read: {error!r}") from error


def _rank(token: Mapping[str, Any]) -> int:
    return token["rank"] or 0


def _token(token: Mapping[str, Any]) -> dict[str, Any]:
    text = token["decoded_token"] or ""
    data = token.get("bytes")  # of a part of a character, where our own engine knows
    return {"token": text, "logprob": token["logprob"], "bytes": data or list(text.encode("utf-8", "replace"))}
