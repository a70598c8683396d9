"""Language models behind V2's generate, told apart by their metadata: which option goes into which tensor.

    kind      who                              what it is asked by
    VLLM      Triton's vLLM backend            `sampling_parameters`, a JSON text, and flags beside it
    TRTLLM    the TensorRT-LLM backend         a tensor for each option, under one of several names
    PLAIN     any other model with text in     a tensor where the model has one of the option's name, else `parameters`
              and text out

Source: triton-inference-server/vllm_backend `src/model.py`, `src/utils/request.py`; NVIDIA/TensorRT-LLM
`triton_backend/all_models` (inflight_batcher_llm/ensemble, tensorrt_llm_bls; llmapi/tensorrt_llm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.sampling_fields import SAMPLING_FIELDS, FieldType

_NUMBERS = frozenset({"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP32", "FP64"})
_TEXTS = frozenset({"BYTES"})
_FLAGS = frozenset({"BOOL"})

# By the type of an option: the datatypes of its tensor. TensorRT-LLM has a BOOL named `stop` too, which cancels.
_DATATYPES = {FieldType.INTEGER: _NUMBERS, FieldType.NUMBER: _NUMBERS, FieldType.TEXTS: _TEXTS}
_IMAGES = ("image", "image_url_input", "image_url")
_OF_LLM_API = "sampling_param_max_tokens"


class Kind(Enum):
    """Whose conventions a model follows."""

    VLLM = "vllm"
    TRTLLM = "tensorrt_llm"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Flavour:
    """How one model is asked for text, and what it answers.

    `places` are the options that have a tensor of their own: option -> tensor. `cumulative`: each event of its stream
    tells all the text so far. `repeats_prompt`: its whole replies begin with the prompt, and no request can switch
    that off.
    """

    kind: Kind
    text_input: str = "text_input"
    text_output: str = "text_output"
    places: Mapping[str, str] = field(default_factory=dict)
    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    stream_input: str = ""
    image_input: str = ""
    cumulative: bool = False
    repeats_prompt: bool = False


def flavour_of(metadata: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Flavour:
    """The flavour of a model by its V2 metadata, as REST tells it ({inputs: [{name, datatype, shape}], outputs}).

    With its configuration it is known too whether a TensorRT-LLM model accumulates what it streams. Metadata without
    inputs is that of an engine that tells none: taken as PLAIN by the generate extension's names.
    Raises: GatewayError(UNSUPPORTED) where no tensor is text.
    """
    inputs, outputs = (
        {tensor["name"]: tensor["datatype"] for tensor in metadata.get(side) or ()} for side in ("inputs", "outputs")
    )
    if not inputs:
        return Flavour(Kind.PLAIN)
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
    return Flavour(
        kind,
        text_input,
        text_output,
        {} if kind is Kind.VLLM else places,
        frozenset(inputs),
        frozenset(outputs),
        stream_input=_first(inputs, ("stream", "streaming"), _FLAGS),
        image_input=_first(inputs, _IMAGES, _TEXTS),
        cumulative=of_llm_api or str(accumulates.get("string_value", "")).lower() in ("true", "1"),
        repeats_prompt=kind is Kind.TRTLLM and not of_llm_api and "exclude_input_in_output" not in inputs,
    )


def _kind(inputs: Mapping[str, str]) -> Kind:
    if "sampling_parameters" in inputs:
        return Kind.VLLM
    if _OF_LLM_API in inputs or ("max_tokens" in inputs and ("stop_words" in inputs or "end_id" in inputs)):
        return Kind.TRTLLM
    return Kind.PLAIN


def _text_tensor(tensors: Mapping[str, str], names: Sequence[str], otherwise: str) -> str:
    """The tensor that has one of the names, else the only one that is text."""
    named = _first(tensors, names, _TEXTS)
    texts = [name for name, datatype in tensors.items() if datatype in _TEXTS]
    if not named and len(texts) != 1:
        raise unsupported(f"{otherwise}: it is no language model")
    return named or texts[0]


def _first(tensors: Mapping[str, str], names: Sequence[str], datatypes: frozenset[str]) -> str:
    return next((name for name in names if tensors.get(name) in datatypes), "")
