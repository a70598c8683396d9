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

from gateway.protocol.errors import ErrorKind, GatewayError

_NUMBERS = frozenset({"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP32", "FP64"})
_TEXTS = frozenset({"BYTES"})
_FLAGS = frozenset({"BOOL"})

# Option -> the tensors that say it, by age of the backend, newest first; and their datatypes: TensorRT-LLM has a BOOL
# named `stop` too, which cancels.
PLACES: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "max_tokens": (("max_tokens", "sampling_param_max_tokens"), _NUMBERS),
    "min_tokens": (("min_tokens", "min_length"), _NUMBERS),
    "temperature": (("temperature", "sampling_param_temperature"), _NUMBERS),
    "top_p": (("top_p", "runtime_top_p", "sampling_param_top_p"), _NUMBERS),
    "top_k": (("top_k", "runtime_top_k", "sampling_param_top_k"), _NUMBERS),
    "min_p": (("min_p",), _NUMBERS),
    "seed": (("seed", "random_seed", "sampling_param_seed"), _NUMBERS),
    "stop": (("stop_words", "stop", "sampling_param_stop"), _TEXTS),
    "bad_words": (("bad_words",), _TEXTS),
    "n": (("num_return_sequences", "n"), _NUMBERS),
    "best_of": (("best_of", "sampling_param_best_of"), _NUMBERS),
    "presence_penalty": (("presence_penalty", "sampling_param_presence_penalty"), _NUMBERS),
    "frequency_penalty": (("frequency_penalty", "sampling_param_frequency_penalty"), _NUMBERS),
    "repetition_penalty": (("repetition_penalty",), _NUMBERS),
    "length_penalty": (("length_penalty", "len_penalty"), _NUMBERS),
    "beam_width": (("beam_width",), _NUMBERS),
}
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
    inputs, outputs = _datatypes(metadata, "inputs"), _datatypes(metadata, "outputs")
    if not inputs:
        return Flavour(Kind.PLAIN)
    name = metadata.get("name", "")
    text_input = _text_tensor(inputs, ("text_input", "INPUT_0"), f"the model '{name}' has no one input that takes text")
    text_output = _text_tensor(
        outputs, ("text_output", "OUTPUT_0"), f"the model '{name}' has no one output that is text"
    )
    kind = _kind(inputs)
    places = {
        option: place
        for option, (names, datatypes) in PLACES.items()
        if (place := next((name for name in names if inputs.get(name) in datatypes), ""))
    }
    of_llm_api = _OF_LLM_API in inputs
    return Flavour(
        kind,
        text_input,
        text_output,
        {} if kind is Kind.VLLM else places,
        frozenset(inputs),
        frozenset(outputs),
        stream_input=_first(inputs, ("stream", "streaming"), _FLAGS),
        image_input=_first(inputs, _IMAGES, _TEXTS),
        cumulative=of_llm_api or _parameter(config, "accumulate_tokens"),
        repeats_prompt=kind is Kind.TRTLLM and not of_llm_api and "exclude_input_in_output" not in inputs,
    )


def _kind(inputs: Mapping[str, str]) -> Kind:
    if "sampling_parameters" in inputs:
        return Kind.VLLM
    if _OF_LLM_API in inputs or ("max_tokens" in inputs and ("stop_words" in inputs or "end_id" in inputs)):
        return Kind.TRTLLM
    return Kind.PLAIN


def _datatypes(metadata: Mapping[str, Any], side: str) -> dict[str, str]:
    return {tensor["name"]: tensor["datatype"] for tensor in metadata.get(side) or ()}


def _text_tensor(tensors: Mapping[str, str], names: Sequence[str], otherwise: str) -> str:
    """The tensor that has one of the names, else the only one that is text."""
    named = _first(tensors, names, _TEXTS)
    texts = [name for name, datatype in tensors.items() if datatype in _TEXTS]
    if not named and len(texts) != 1:
        raise GatewayError(ErrorKind.UNSUPPORTED, f"{otherwise}: it is no language model")
    return named or texts[0]


def _first(tensors: Mapping[str, str], names: Sequence[str], datatypes: frozenset[str]) -> str:
    return next((name for name in names if tensors.get(name) in datatypes), "")


def _parameter(config: Mapping[str, Any] | None, name: str) -> bool:
    """Whether a parameter of a model's configuration is set: {name: {string_value}}."""
    value = ((config or {}).get("parameters") or {}).get(name) or {}
    return str(value.get("string_value", "")).lower() in ("true", "1")
