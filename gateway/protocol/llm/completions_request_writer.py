"""Requests of OpenAI's completions, written for an engine that takes them.

A client of another API that says no `max_tokens` gets as many as there is room for, which is `null` in this one.

Source: OpenAI API reference, "Create completion"; vLLM's and SGLang's extra parameters.
"""

from __future__ import annotations

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.openai_options import EXTRAS
from gateway.protocol.llm.request_fields import Fields, dumped
from gateway.protocol.llm.sampling_fields import accepted_by, fields_of
from gateway.protocol.operations import LlmApi

__all__ = ["ENGINE", "write_request"]

ENGINE = "an OpenAI completions engine"
_KNOWN = fields_of(LlmApi.COMPLETIONS) | EXTRAS


def write_request(generation: Generation, *, model: str, drop: bool) -> tuple[bytes, list[str]]:
    """The body for `/v1/completions`, and the names of dropped options. Of a stream, usage is asked always.

    Raises: GatewayError(UNSUPPORTED) that names what the engine has no place for: messages that no template has made a
    prompt of, images, tools.
    """
    if generation.prompt is None:
        raise GatewayError(ErrorKind.UNSUPPORTED, f"messages cannot be told to {ENGINE} without a 'chat_template'")
    if generation.has_media:
        raise GatewayError(ErrorKind.UNSUPPORTED, f"images, sounds and files cannot be told to {ENGINE}")
    told = dict(generation.options)
    if generation.tools:
        told["tools"] = generation.tools
    options, lost = accepted_by(told, _KNOWN, engine=ENGINE, drop=drop)
    body: Fields = {"model": model, "prompt": generation.prompt}
    if generation.messages:
        body["max_tokens"] = None
    body |= options
    if generation.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return dumped(body), lost
