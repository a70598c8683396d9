"""Requests of OpenAI's completions, read from clients and written for engines.

A client without `max_tokens` gets 16, as the API has it, whatever the engine. A client of another API gets as many as
there is room for, which is `null` here.

Source: OpenAI API reference, "Create completion"; vLLM's and SGLang's extra parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.json_fields import Fields, bad_request, dumped, optional, read_fields, required
from gateway.protocol.llm.openai_options import EXTRAS, read_options, read_stream
from gateway.protocol.llm.sampling_fields import accepted_by, fields_of
from gateway.protocol.operations import LlmApi

DEFAULT_MAX_TOKENS = 16


def read_request(body: bytes) -> Generation:
    """What a client asks of `/v1/completions`."""
    return _generation(read_fields(body))


def read_requests(body: bytes) -> list[Generation]:
    """One generation for each prompt of a body, in their order; evaluations send several, which no stream can tell."""
    given = read_fields(body)
    prompts = given.get("prompt")
    if not isinstance(prompts, list) or len(prompts) < 2 or not isinstance(prompts[0], str | list):
        return [_generation(given)]
    if optional(given, "stream", bool):
        raise bad_request(f"'prompt' holds {len(prompts)} prompts, of which a stream can tell one; ask for each alone")
    first = _generation({**given, "prompt": prompts[0]})
    return [first, *(replace(first, prompt=_prompt(prompt)) for prompt in prompts[1:])]


def _generation(given: Fields) -> Generation:
    model = required(given, "model", str)
    prompt = _prompt(given.pop("prompt", None))
    stream, include_usage, more = read_stream(given)
    logprobs = optional(given, "logprobs", int)
    given.pop("logprobs", None)
    del given["model"]
    options = {"max_tokens": DEFAULT_MAX_TOKENS} | read_options(given) | more
    if logprobs is not None:
        options["logprobs"] = logprobs
    return Generation(model, prompt, (), (), options, stream, include_usage)


def _prompt(given: Any) -> str | Sequence[int]:
    """The prompt: a text or token ids, alone or as the one element of a list."""
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        if len(given) > 1:
            raise bad_request(f"'prompt' holds {len(given)} prompts; this model's engine takes one in a request")
        given = given[0]
    if isinstance(given, str):
        return given
    if isinstance(given, list) and given and all(type(token) is int for token in given):
        return given
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
    if generation.has_media:
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
