"""Builds the inference request of a generation, for a language model of this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from engines.backends.paged.chat import ChatValue, chat_value
from engines.core.messages import InferRequest, Scalar, TensorData
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.json_fields import bad_request
from gateway.protocol.llm.sampling_fields import WITHOUT_EFFECT

_IGNORED = WITHOUT_EFFECT | {"verbosity"}
_ADAPTERS = ("adapter", "lora_name", "lora_path")
_RETURN_FLAGS = ("finish_reason", "stop_reason", "num_input_tokens", "num_output_tokens", "num_cached_tokens")
_TRUE = b"\x01"
# V2's level of requests without one, where OpenAI's clients of vLLM have 0; lower goes first in both.
_LEVEL = 100


def infer_request(
    generation: Generation,
    *,
    model: str,
    adapter: str | None,
    id: str,
    trace: Mapping[str, str],
    counts: bool = False,
    lists_tokens: bool = False,
) -> InferRequest:
    """`adapter` is the one that the generation's model names, or None. `counts`: only the prompt's tokens are counted;
    `lists_tokens`: and listed.

    Raises: GatewayError that names the field; EngineError for a chat that is more than text.
    """
    options = {name: value for name, value in generation.options.items() if name not in _IGNORED}
    if options.get("tool_choice", "auto") not in ("auto", "none"):  # a template can list tools or leave them out
        what = "'tool_choice' can be auto or none here: nothing makes the model call a tool; leave it out"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    has_tools = bool(generation.tools) and options.pop("tool_choice", "auto") != "none"
    echoes = bool(options.pop("echo", False))
    inputs = [*_prompt(generation, echoes), *(_flag(f"return_{name}") for name in _RETURN_FLAGS)]
    if generation.stream:
        inputs.append(_flag("stream"))
    if "logprobs" in options:
        inputs.append(_flag("return_logprobs"))
        if echoes:
            inputs.append(_flag("return_prompt_logprobs"))
            options["prompt_logprobs"] = options["logprobs"]
    parameters = _parameters(options, adapter)
    if counts:
        parameters["count_tokens"] = True
    if lists_tokens:
        inputs.append(_flag("return_token_ids"))
    priority = options.pop("priority", 0)
    level = max(1, _LEVEL + int(priority)) if priority else 0
    inputs.append(_json("sampling_parameters", options))
    chat = _chat(generation, has_tools) if generation.prompt is None else None
    return InferRequest(model, "", id, parameters, tuple(inputs), priority=level, trace=trace, chat=chat)


def _prompt(generation: Generation, echoes: bool) -> list[TensorData]:
    """The tensors of the prompt, and whether the model repeats it: the reader of the responses knows its text, unless
    it is token ids."""
    prompt, alone = generation.prompt, _flag("exclude_input_in_output")
    if isinstance(prompt, str):
        return [_text("text_input", prompt.encode("utf-8", "replace")), alone]
    if prompt is None:  # the chat stands beside the tensors
        return [alone]
    if echoes and generation.stream:
        raise bad_request("'echo' of a prompt of token ids cannot be streamed")
    try:
        data = b"".join([token.to_bytes(8, "little", signed=True) for token in prompt])
    except OverflowError:
        raise bad_request("'prompt' holds numbers that are no token ids") from None
    ids = TensorData("input_ids", "INT64", (len(prompt),), data)
    return [ids] if echoes else [ids, alone]


def _chat(generation: Generation, has_tools: bool) -> ChatValue:
    """Messages and tools; a developer's message becomes the system's, which every template knows.

    Raises: EngineError(UNSUPPORTED) for images, sounds and files.
    """
    messages = [replace(each, role="system") if each.role == "developer" else each for each in generation.messages]
    return chat_value(messages, generation.tools if has_tools else ())


def _parameters(options: dict[str, Any], adapter: str | None) -> dict[str, Scalar]:
    """Request parameters, taken out of the options."""
    parameters: dict[str, Scalar] = {"tell_at_end": True}
    named = [str(options.pop(name)) for name in _ADAPTERS if options.get(name)]
    named += [adapter] if adapter else []
    if named:
        if len(set(named)) > 1:
            raise bad_request(f"two adapters are named, '{named[0]}' and '{named[1]}'; name one")
        parameters["adapter"] = named[0]
    if (salt := options.pop("cache_salt", None)) is not None:
        if not isinstance(salt, str):
            raise bad_request("'cache_salt' must be a string")
        parameters["cache_salt"] = salt
    return parameters


def _text(name: str, data: bytes) -> TensorData:
    return TensorData(name, "BYTES", (1,), len(data).to_bytes(4, "little") + data)


def _json(name: str, value: Any) -> TensorData:
    try:
        return _text(name, orjson.dumps(value))
    except TypeError:  # all other values come from JSON
        raise bad_request("the request holds a number of more than 64 bits, which nothing here can be") from None


def _flag(name: str) -> TensorData:
    return TensorData(name, "BOOL", (1,), _TRUE)
