"""A generation as a V2 engine is asked for it, by `generate` or `generate_stream`. Metadata tells the kinds of models:

    kind      who                              what it is asked by
    VLLM      Triton's vLLM backend            `sampling_parameters`, a JSON text, and flags beside it
    TRTLLM    the TensorRT-LLM backend         a tensor for each option, under one of several names
    PLAIN     any other model with text in     a tensor where the model has one of the option's name, else `parameters`
              and text out

Source: triton-inference-server/vllm_backend `src/model.py`, `src/utils/request.py`; vLLM `SamplingParams`;
NVIDIA/TensorRT-LLM `triton_backend/all_models` (inflight_batcher_llm/ensemble, tensorrt_llm_bls; llmapi/tensorrt_llm),
`docs/guided_decoding.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation, Media, split_data_url
from gateway.protocol.llm.sampling_fields import OPTIONS, SAMPLING_FIELDS, FieldType, accepted_by

_NUMBERS = frozenset({"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP32", "FP64"})
_TEXTS = frozenset({"BYTES"})
_FLAGS = frozenset({"BOOL"})

# By the type of an option: the datatypes of its tensor. TensorRT-LLM has a BOOL named `stop` too, which cancels.
_DATATYPES = {FieldType.INTEGER: _NUMBERS, FieldType.NUMBER: _NUMBERS, FieldType.TEXTS: _TEXTS}
_IMAGES = ("image", "image_url_input", "image_url")
_OF_LLM_API = "sampling_param_max_tokens"


class GenerateConvention(Enum):
    """The backend whose conventions a model follows."""

    VLLM = "vllm"
    TRTLLM = "tensorrt_llm"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class GenerateSignature:
    """The tensors and conventions of one model for a request of text and its reply.

    `places` are the options that have a tensor of their own: option -> tensor. `cumulative`: each event of its stream
    tells all the text so far. `repeats_prompt`: its whole replies begin with the prompt, and no request can switch
    that off.
    """

    kind: GenerateConvention
    text_input: str = "text_input"
    text_output: str = "text_output"
    places: Mapping[str, str] = field(default_factory=dict)
    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    stream_input: str = ""
    image_input: str = ""
    cumulative: bool = False
    repeats_prompt: bool = False


def signature_of(metadata: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> GenerateSignature:
    """The signature of a model by its V2 metadata, as in REST ({inputs: [{name, datatype, shape}], outputs}).

    With its configuration it is known too whether a TensorRT-LLM model accumulates what it streams. Metadata without
    inputs is that of an engine that tells none: taken as PLAIN by the generate extension's names.
    Raises: GatewayError(UNSUPPORTED) where no tensor is text.
    """
    inputs, outputs = (
        {tensor["name"]: tensor["datatype"] for tensor in metadata.get(side) or ()} for side in ("inputs", "outputs")
    )
    if not inputs:
        return GenerateSignature(GenerateConvention.PLAIN)
    name = metadata.get("name", "")
    text_input = _text_tensor(inputs, ("text_input", "INPUT_0"), f"the model '{name}' has no one input that takes text")
    text_output = _text_tensor(
        outputs, ("text_output", "OUTPUT_0"), f"the model '{name}' has no one output that is text"
    )
    kind = _kind(inputs)
    places = {
        option.name: place
        for option in SAMPLING_FIELDS
        if option.tensors and (place := _first(inputs, option.tensors, _DATATYPES[option.type]))
    }
    of_llm_api = _OF_LLM_API in inputs
    accumulates = ((config or {}).get("parameters") or {}).get("accumulate_tokens") or {}
    return GenerateSignature(
        kind,
        text_input,
        text_output,
        {} if kind is GenerateConvention.VLLM else places,
        frozenset(inputs),
        frozenset(outputs),
        stream_input=_first(inputs, ("stream", "streaming"), _FLAGS),
        image_input=_first(inputs, _IMAGES, _TEXTS),
        cumulative=of_llm_api or str(accumulates.get("string_value", "")).lower() in ("true", "1"),
        repeats_prompt=kind is GenerateConvention.TRTLLM and not of_llm_api and "exclude_input_in_output" not in inputs,
    )


def _kind(inputs: Mapping[str, str]) -> GenerateConvention:
    if "sampling_parameters" in inputs:
        return GenerateConvention.VLLM
    if _OF_LLM_API in inputs or ("max_tokens" in inputs and ("stop_words" in inputs or "end_id" in inputs)):
        return GenerateConvention.TRTLLM
    return GenerateConvention.PLAIN


def _text_tensor(tensors: Mapping[str, str], names: Sequence[str], otherwise: str) -> str:
    """The tensor that has one of the names, else the only one that is text."""
    named = _first(tensors, names, _TEXTS)
    texts = [name for name, datatype in tensors.items() if datatype in _TEXTS]
    if not named and len(texts) != 1:
        raise unsupported(f"{otherwise}: it is no language model")
    return named or texts[0]


def _first(tensors: Mapping[str, str], names: Sequence[str], datatypes: frozenset[str]) -> str:
    return next((name for name in names if tensors.get(name) in datatypes), "")


# What OpenAI's completions, and vLLM's own parameters, fall back to; a chat that ends after 16 tokens is no chat, so it
# has a default that is an answer's length.
DEFAULT_MAX_TOKENS = 16
DEFAULT_CHAT_MAX_TOKENS = 1024

# Fields of SamplingParams that arrive as they were meant: its token ids of `logit_bias` would stay texts, and of
# `prompt_logprobs` the backend tells nothing. `lora_name` is the backend's own.
_SAMPLING = frozenset({"lora_name", *(field.name for field in SAMPLING_FIELDS if field.in_vllm_backend)})
# What a reply tells where it is asked to by `return_...`.
_OUTPUTS = ("finish_reason", "num_input_tokens", "num_output_tokens", "stop_reason")
_WORDS = {
    GenerateConvention.VLLM: "Triton's vLLM backend",
    GenerateConvention.TRTLLM: "a TensorRT-LLM model of Triton's",
    GenerateConvention.PLAIN: "a V2 generate engine",
}


def write_request(
    generation: Generation, *, model: str, signature: GenerateSignature, drop: bool = False
) -> tuple[str, bytes, list[str]]:
    """The end of the path (`generate` or `generate_stream`), the body, and the names of what was dropped.

    A chat is asked by its `prompt`, as a template rendered it; its messages may stay beside it, for their images.
    Raises: GatewayError(UNSUPPORTED) for what the engine has no place for.
    """
    body: dict[str, Any] = {"id": generation.id} if generation.id else {}
    body[signature.text_input] = _prompt(generation, model)
    # Our reader puts the prompt before the text itself; nobody reads what a template makes of messages.
    known = _known(signature) - ({"echo"} if generation.messages else set())
    fields, lost = accepted_by(_fields_of(generation), known, engine=_WORDS[signature.kind], drop=drop)
    if images := fields.pop("image", None):
        body[signature.image_input] = images
    fields.pop("echo", None)
    if signature.kind is not GenerateConvention.PLAIN and "max_tokens" not in fields:
        fields["max_tokens"] = DEFAULT_CHAT_MAX_TOKENS if generation.messages else DEFAULT_MAX_TOKENS
    if signature.stream_input:
        body[signature.stream_input] = generation.stream
    if "exclude_input_in_output" in signature.inputs:
        body["exclude_input_in_output"] = True
    outputs = [name for name in _OUTPUTS if f"return_{name}" in signature.inputs and name in signature.outputs]
    body |= {f"return_{name}": True for name in outputs}
    body |= _WRITERS[signature.kind](fields, signature)
    suffix = "generate_stream" if generation.stream else "generate"
    try:
        return suffix, orjson.dumps(body), lost
    except TypeError as error:
        raise GatewayError(ErrorKind.BAD_REQUEST, f"the request cannot be written as JSON: {error}") from error


def _prompt(generation: Generation, model: str) -> str:
    if isinstance(generation.prompt, str):
        return generation.prompt
    if generation.prompt is not None:
        raise unsupported(f"the model '{model}' takes its prompt as text, not as token ids")
    raise unsupported(f"the model '{model}' takes a prompt, not messages; give its engine a 'chat_template'")


def _fields_of(generation: Generation) -> dict[str, Any]:
    """Everything besides the prompt, by name: media and tools too."""
    fields = dict(generation.options)
    if fields.get("response_format") == {"type": "text"}:
        del fields["response_format"]
    if generation.tools:
        fields["tools"] = generation.tools
    for message in generation.messages:
        for part in message.parts:
            if isinstance(part, Media):
                fields.setdefault(part.kind, []).append(part.url)
    if "image" in fields:
        images = [split_data_url(url) for url in fields["image"]]
        if None in images:
            raise unsupported("a V2 engine takes an image by its bytes: send it as a base64 'data:' URL")
        fields["image"] = [image[1] for image in images if image]
    return fields


def _known(signature: GenerateSignature) -> frozenset[str]:
    images = {"image"} if signature.image_input == "image" else set()
    match signature.kind:
        case GenerateConvention.VLLM:
            logprobs = {"logprobs"} if "return_logprobs" in signature.inputs else set()
            return _SAMPLING | images | logprobs | {"response_format", "echo"}
        case GenerateConvention.TRTLLM:
            guides = {"response_format"} if "guided_decoding_guide_type" in signature.inputs else set()
            return frozenset(signature.places) | guides | {"echo"}
        case GenerateConvention.PLAIN:
            return frozenset(OPTIONS) | images


def _write_vllm(fields: dict[str, Any], signature: GenerateSignature) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if "response_format" in fields:
        # Renamed in the release after the one that brought `embedding_request`.
        name = "structured_outputs" if "embedding_request" in signature.inputs else "guided_decoding"
        fields[name] = orjson.dumps(_guided(fields.pop("response_format"))).decode()
    if "logprobs" in fields:
        written["return_logprobs"] = True
    return written | {"sampling_parameters": orjson.dumps(fields).decode()}


def _write_trtllm(fields: dict[str, Any], signature: GenerateSignature) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if "response_format" in fields:
        guide = _guided(fields.pop("response_format"))
        written["guided_decoding_guide_type"] = "json_schema" if "json" in guide else "json"
        if "json" in guide:
            written["guided_decoding_guide"] = orjson.dumps(guide["json"]).decode()
    return written | {signature.places[name]: value for name, value in fields.items()}


def _write_plain(fields: dict[str, Any], signature: GenerateSignature) -> dict[str, Any]:
    """A parameter is a scalar: a list or a map goes as the text of its JSON."""
    written = {signature.places[name]: fields.pop(name) for name in list(fields) if name in signature.places}
    if fields:
        written["parameters"] = {
            name: orjson.dumps(value).decode() if isinstance(value, list | dict | tuple) else value
            for name, value in fields.items()
        }
    return written


def _guided(response_format: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's form of OpenAI's `response_format`."""
    match response_format:
        case {"type": "json_object"}:
            return {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json": schema}
    raise GatewayError(ErrorKind.BAD_REQUEST, "'response_format' must be json_object, or json_schema with a 'schema'")


_WRITERS = {
    GenerateConvention.VLLM: _write_vllm,
    GenerateConvention.TRTLLM: _write_trtllm,
    GenerateConvention.PLAIN: _write_plain,
}
