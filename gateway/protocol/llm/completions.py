"""OpenAI's completions: requests and replies, read and written.

A client without `max_tokens` gets 16, as the API has it, whatever the engine. A client of another API gets as many as
there is room for, which is `null` here.

Log probabilities have a form of their own; that of chat completions is the canonical one:

    completions: {tokens: [t], token_logprobs: [x], top_logprobs: [{t: x}] or null, text_offset: [n]}
    chat:        [{token: t, logprob: x, bytes: [b] or null, top_logprobs: [{token: t, logprob: x, bytes: [b]}]}]

Source: OpenAI API reference, "Create completion", "The completion object"; vLLM's and SGLang's extra parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice, zip_longest
from typing import Any

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.canonical import Event, Finished, Generation, Media, ReasoningDelta, TextDelta
from gateway.protocol.llm.json_fields import Fields, bad_request, dumped, optional, read_fields, required, text_of
from gateway.protocol.llm.openai_options import EXTRAS, read_options, read_stream
from gateway.protocol.llm.openai_reply import OpenAIReplyReader, OpenAIReplyWriter, ReplyChoice
from gateway.protocol.llm.sampling_fields import accepted_by, fields_of
from gateway.protocol.operations import LlmApi

DEFAULT_MAX_TOKENS = 16


def read_request(body: bytes) -> Generation:
    """What a client asks of `/v1/completions`."""
    return _generation(read_fields(body))


def read_requests(body: bytes) -> list[Generation]:
    """One generation for each prompt of a body, in their order; evaluations send several, which no stream can tell."""
    fields = read_fields(body)
    prompts = fields.get("prompt")
    if not isinstance(prompts, list) or len(prompts) < 2 or not isinstance(prompts[0], str | list):
        return [_generation(fields)]
    if optional(fields, "stream", bool):
        raise bad_request(f"'prompt' holds {len(prompts)} prompts, of which a stream can tell one; ask for each alone")
    first = _generation({**fields, "prompt": prompts[0]})
    return [first, *(replace(first, prompt=_prompt(prompt)) for prompt in prompts[1:])]


def _generation(fields: Fields) -> Generation:
    model = required(fields, "model", str)
    prompt = _prompt(fields.pop("prompt", None))
    stream, include_usage, more = read_stream(fields)
    logprobs = optional(fields, "logprobs", int)
    fields.pop("logprobs", None)
    del fields["model"]
    options = {"max_tokens": DEFAULT_MAX_TOKENS} | read_options(fields) | more
    if logprobs is not None:
        options["logprobs"] = logprobs
    return Generation(model, prompt, (), (), options, stream, include_usage)


def _prompt(value: Any) -> str | Sequence[int]:
    """The prompt: a text or token ids, alone or as the one element of a list."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise bad_request(f"'prompt' holds {len(value)} prompts; this model's engine takes one in a request")
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return value
    raise bad_request("'prompt' must be a string or a list of token ids")


ENGINE = "an OpenAI completions engine"
_KNOWN = fields_of(LlmApi.COMPLETIONS) | EXTRAS


def write_request(generation: Generation, *, model: str, drop: bool) -> tuple[bytes, list[str]]:
    """The body for `/v1/completions`, and the names of dropped options. A stream always asks for usage.

    Raises: GatewayError(UNSUPPORTED) for messages that no template has made a prompt of, images, tools and options that
    the engine has no place for.
    """
    if generation.prompt is None:
        raise unsupported(f"messages cannot be told to {ENGINE} without a 'chat_template'")
    if any(isinstance(part, Media) for message in generation.messages for part in message.parts):
        raise unsupported(f"images, sounds and files cannot be told to {ENGINE}")
    fields = dict(generation.options)
    if generation.tools:
        fields["tools"] = generation.tools
    options, lost = accepted_by(fields, _KNOWN, engine=ENGINE, drop=drop)
    body: Fields = {"model": model, "prompt": generation.prompt}
    if generation.messages:
        body["max_tokens"] = None
    body |= options
    if generation.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return dumped(body), lost


# Stands for what a tokenizer could not decode.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def from_completions(parsed: Any) -> list[Fields] | None:
    """The canonical form; None where there is none. llama.cpp tells chat's form in completions too (`content`)."""
    if not isinstance(parsed, dict):
        return None
    if isinstance(parsed.get("content"), list):
        return list(parsed["content"])
    tokens, logprobs, tops = (_list(parsed.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    found = []
    for token, logprob, top in islice(zip_longest(tokens, logprobs, tops), len(tokens)):
        alternatives = [_one(other, value) for other, value in top.items()] if isinstance(top, dict) else []
        found.append({**_one(str(token), logprob), "top_logprobs": alternatives})
    return found or None


def to_completions(parsed: Sequence[Mapping[str, Any]], offset: int) -> tuple[Fields, int]:
    """The form of completions, and the offset of what follows. Offsets count characters of the reply's text."""
    tokens = [one.get("token") or "" for one in parsed]
    tops = [{top.get("token") or "": top.get("logprob") for top in one.get("top_logprobs") or ()} for one in parsed]
    *offsets, end = accumulate(map(len, tokens), initial=offset)
    fields = {
        "tokens": tokens,
        "token_logprobs": [one.get("logprob") for one in parsed],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": offsets,
    }
    return fields, end


def _one(token: str, logprob: Any) -> Fields:
    """Bytes are told where they are known: a token of part of a character is not decoded."""
    return {"token": token, "logprob": logprob, "bytes": None if _REPLACEMENT in token else list(token.encode())}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class CompletionsReplyReader(OpenAIReplyReader):
    """Reads one reply."""

    def _more(self, index: int, parsed: Fields, choice: Fields, events: list[Event]) -> None:
        text = text_of(parsed.get("text"))
        logprobs = from_completions(parsed.get("logprobs"))
        if text or logprobs:
            events.append(TextDelta(text, index, logprobs))


class CompletionsReplyWriter(OpenAIReplyWriter):
    """Writes one reply.

    The API has no place for thoughts; they are told as chat completions tell them, in `reasoning_content` beside an
    empty text, which its clients pass over.
    """

    _stream_object = "text_completion"
    _whole_object = "text_completion"

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        super().__init__(generation, id=id, created=created, model=model)
        self._texts: dict[int, bytes] = {}  # a chunk of each choice, up to its text
        self._end_of_text = b',"logprobs":null,"finish_reason":null}]' + self._stop
        self._offsets: dict[int, int] = {}  # characters told of each choice

    def _event_bytes(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            if event.logprobs is None:
                begin = self._texts.get(event.index)
                if begin is None:
                    begin = self._texts[event.index] = self._chunk(b'[{"index":%d,"text":' % event.index, b"")
                return begin + orjson.dumps(event.text) + self._end_of_text
            logprobs, self._offsets[event.index] = to_completions(event.logprobs, self._offsets.get(event.index, 0))
            return self._one({**_choice(event.index, event.text), "logprobs": logprobs})
        if isinstance(event, ReasoningDelta):
            return self._one({**_choice(event.index), "reasoning_content": event.text}) if event.text else b""
        if isinstance(event, Finished):
            return self._one({**_choice(event.index), "finish_reason": _reason(event)})
        return b""

    def _one(self, choice: Fields) -> bytes:
        return self._chunk(orjson.dumps([choice]), self._stop)

    def _choice(self, index: int, choice: ReplyChoice) -> Fields:
        logprobs = to_completions(choice.logprobs, 0)[0] if choice.logprobs else None
        fields = {"index": index, "text": "".join(choice.texts), "logprobs": logprobs, "finish_reason": _reason(choice)}
        return fields | ({"reasoning_content": "".join(choice.thoughts)} if choice.thoughts else {})


def _choice(index: int, text: str = "") -> Fields:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def _reason(event: Finished | ReplyChoice) -> str:
    """The API has no calls of tools: who asks for none stops there."""
    return "stop" if event.reason == "tool_calls" else event.reason
