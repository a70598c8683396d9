"""The fields of a generation besides its text: one table for the readers and writers of every API and the paged engine.

A new sampling parameter is a row here, an attribute of the engine's `SamplingParams`, and the code that applies it.

Sources: OpenAI, Anthropic and vLLM (`SamplingParams`) for names and meanings; NVIDIA/TensorRT-LLM
`triton_backend/all_models` and triton-inference-server/vllm_backend for tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.json_fields import NUMBER, Kind
from gateway.protocol.operations import LlmApi

_OPENAI = frozenset({LlmApi.CHAT, LlmApi.COMPLETIONS})
_CHAT = frozenset({LlmApi.CHAT})
_COMPLETIONS = frozenset({LlmApi.COMPLETIONS})
_RESPONSES = frozenset({LlmApi.RESPONSES})
_MESSAGES = frozenset({LlmApi.MESSAGES})


class FieldType(Enum):
    """What a field's value is."""

    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    TEXT = "text"
    TEXTS = "texts"
    TOKEN_IDS = "token ids"
    MAP = "map"
    OBJECT = "object"  # or a word for one

    @property
    def json_type(self) -> Kind:
        """The type of its value in JSON."""
        return _JSON_TYPES[self]


_JSON_TYPES: dict[FieldType, Kind] = {
    FieldType.INTEGER: int,
    FieldType.NUMBER: NUMBER,
    FieldType.FLAG: bool,
    FieldType.TEXT: str,
    FieldType.TEXTS: list,
    FieldType.TOKEN_IDS: list,
    FieldType.MAP: dict,
    FieldType.OBJECT: dict,
}


@dataclass(frozen=True, slots=True)
class SamplingField:
    """One field. `name` is OpenAI's where it has one, else vLLM's, which most engines took over."""

    name: str
    type: FieldType
    meaning: str = ""
    idle: tuple[Any, ...] = ()  # values that request nothing: many clients send all the fields that they know
    apis: frozenset[LlmApi] = _OPENAI  # whose bodies have it by this name, in requests for engines too
    aliases: tuple[str, ...] = ()  # in OpenAI's bodies, as engines call it; the first that is there counts
    tensors: tuple[str, ...] = ()  # of V2 models, newest backend first
    in_vllm_backend: bool = False  # whether it arrives as meant in `sampling_parameters` of Triton's vLLM backend
    # Of the paged engine
    in_engine: bool = False
    engine_aliases: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False  # whether `low` itself is excluded


_INTEGER, _NUMBER, _FLAG, _TEXT = FieldType.INTEGER, FieldType.NUMBER, FieldType.FLAG, FieldType.TEXT
_TEXTS, _IDS, _MAP, _OBJECT = FieldType.TEXTS, FieldType.TOKEN_IDS, FieldType.MAP, FieldType.OBJECT
_MAX_CHOICES = 128
_MAX_FACTOR = 100  # of temperature and penalties: beyond it float32 overflows sooner or later
_ANY_API = _OPENAI | _RESPONSES | _MESSAGES

SAMPLING_FIELDS = (
    SamplingField(
        "max_tokens",
        _INTEGER,
        "tokens to generate at most, reasoning included",
        apis=_OPENAI | _MESSAGES,
        aliases=("max_completion_tokens", "n_predict"),
        tensors=("max_tokens", "sampling_param_max_tokens"),
        in_vllm_backend=True,
        in_engine=True,
        engine_aliases=("max_completion_tokens", "max_new_tokens"),
        low=1,
    ),
    SamplingField(
        "min_tokens",
        _INTEGER,
        "tokens to generate at least",
        idle=(0,),
        tensors=("min_tokens", "min_length"),
        in_vllm_backend=True,
        in_engine=True,
        engine_aliases=("min_length", "min_new_tokens"),
        low=0,
    ),
    SamplingField(
        "temperature",
        _NUMBER,
        apis=_ANY_API,
        tensors=("temperature", "sampling_param_temperature"),
        in_vllm_backend=True,
        in_engine=True,
        low=0,
        high=_MAX_FACTOR,
    ),
    SamplingField(
        "top_p",
        _NUMBER,
        apis=_ANY_API,
        tensors=("top_p", "runtime_top_p", "sampling_param_top_p"),
        in_vllm_backend=True,
        in_engine=True,
        engine_aliases=("runtime_top_p",),
        low=0,
        high=1,
        above_low=True,
    ),
    SamplingField(
        "top_k",
        _INTEGER,
        apis=_ANY_API,
        tensors=("top_k", "runtime_top_k", "sampling_param_top_k"),
        in_vllm_backend=True,
        in_engine=True,
        engine_aliases=("runtime_top_k",),
        low=-1,
        high=(1 << 31) - 1,
    ),
    SamplingField("min_p", _NUMBER, tensors=("min_p",), in_vllm_backend=True, in_engine=True, low=0, high=1),
    SamplingField(
        "seed",
        _INTEGER,
        apis=_OPENAI | _RESPONSES,
        tensors=("seed", "random_seed", "sampling_param_seed"),
        in_vllm_backend=True,
        in_engine=True,
        engine_aliases=("random_seed",),
        low=-(1 << 63),
        high=(1 << 64) - 1,
    ),
    SamplingField("ignore_eos", _FLAG, idle=(False,), apis=_OPENAI | _RESPONSES, in_vllm_backend=True, in_engine=True),
    SamplingField(
        "n",
        _INTEGER,
        "choices; 1 is the default and is not stored",
        idle=(1,),
        tensors=("num_return_sequences", "n"),
        in_vllm_backend=True,
        in_engine=True,
        low=1,
        high=_MAX_CHOICES,
    ),
    SamplingField(
        "best_of",
        _INTEGER,
        idle=(1,),
        apis=_COMPLETIONS,
        tensors=("best_of", "sampling_param_best_of"),
        in_engine=True,
        low=1,
        high=_MAX_CHOICES,
    ),
    SamplingField(
        "presence_penalty",
        _NUMBER,
        idle=(0,),
        tensors=("presence_penalty", "sampling_param_presence_penalty"),
        in_vllm_backend=True,
        in_engine=True,
        low=-2,
        high=2,
    ),
    SamplingField(
        "frequency_penalty",
        _NUMBER,
        idle=(0,),
        tensors=("frequency_penalty", "sampling_param_frequency_penalty"),
        in_vllm_backend=True,
        in_engine=True,
        low=-2,
        high=2,
    ),
    SamplingField(
        "repetition_penalty",
        _NUMBER,
        apis=_OPENAI | _RESPONSES,
        aliases=("repeat_penalty",),
        tensors=("repetition_penalty",),
        in_vllm_backend=True,
        in_engine=True,
        low=1 / _MAX_FACTOR,
        high=_MAX_FACTOR,
    ),
    SamplingField(
        "length_penalty",
        _NUMBER,
        idle=(1,),
        tensors=("length_penalty", "len_penalty"),
        in_engine=True,
        engine_aliases=("len_penalty",),
    ),
    SamplingField(
        "logit_bias",
        _MAP,
        "token id (as text) to number",
        idle=({},),
        apis=_OPENAI | _RESPONSES,
        in_engine=True,
    ),
    SamplingField(
        "echo",
        _FLAG,
        "the prompt stands before the text; false is the default and is not stored",
        idle=(False,),
        apis=_COMPLETIONS,
    ),
    SamplingField("suffix", _TEXT, "what follows the text to insert", idle=("",), apis=_COMPLETIONS),
    SamplingField(
        "skip_special_tokens",
        _FLAG,
        idle=(True,),
        apis=_OPENAI | _RESPONSES,
        in_vllm_backend=True,
        in_engine=True,
    ),
    SamplingField("parallel_tool_calls", _FLAG, idle=(True,), apis=_CHAT | _RESPONSES),
    SamplingField("reasoning_effort", _TEXT, "none, minimal, low, medium, high", apis=_CHAT),
    SamplingField(
        "thinking_tokens",
        _INTEGER,
        "budget for reasoning; 0 switches it off",
        idle=(-1,),
        apis=frozenset(),
        aliases=("thinking_token_budget", "thinking_budget_tokens"),
    ),
    SamplingField("user", _TEXT, "whose request it is", apis=_OPENAI | _RESPONSES),
    SamplingField("metadata", _MAP, "of str: for the provider's own records", idle=({},), apis=_OPENAI | _RESPONSES),
    SamplingField("priority", _INTEGER, "the scheduler's", idle=(0,), apis=_OPENAI | _RESPONSES),
    SamplingField("stop_token_ids", _IDS, idle=([],), in_vllm_backend=True, in_engine=True, engine_aliases=("end_id",)),
    SamplingField(
        "bad_words",
        _TEXTS,
        "texts that must not occur",
        idle=([],),
        tensors=("bad_words",),
        in_vllm_backend=True,
        in_engine=True,
    ),
    # Those that each API writes in a form of its own.
    SamplingField(
        "stop",
        _TEXTS,
        "texts that end a choice",
        apis=_OPENAI | _RESPONSES,
        tensors=("stop_words", "stop", "sampling_param_stop"),
        in_vllm_backend=True,
        in_engine=True,
        engine_aliases=("stop_words", "stop_sequences"),
    ),
    SamplingField("logprobs", _INTEGER, "alternatives beside each token's own log probability; 0: its own alone"),
    SamplingField("prompt_logprobs", _INTEGER, "no reply has a place for them", apis=frozenset()),
    SamplingField(
        "response_format",
        _OBJECT,
        "OpenAI's chat form: {type: json_object}, or {type: json_schema, json_schema: {name, schema}}",
    ),
    SamplingField(
        "tool_choice",
        _OBJECT,
        "OpenAI's chat form: auto, none, required or {type: function, function: {name}}",
        apis=_CHAT,
    ),
    SamplingField(
        "beam_width",
        _INTEGER,
        "beams of a beam search",
        apis=frozenset(),
        tensors=("beam_width",),
        in_engine=True,
        engine_aliases=("num_beams",),
        low=0,
        high=_MAX_CHOICES,
    ),
)
OPTIONS: Mapping[str, SamplingField] = {field.name: field for field in SAMPLING_FIELDS}
# Fields with a form of their own in OpenAI's bodies, which `openai_options` reads one by one.
READ_APART = frozenset({"stop", "logprobs", "prompt_logprobs", "response_format", "tool_choice", "beam_width"})


def fields_of(api: LlmApi) -> frozenset[str]:
    """The names of the fields that an API's bodies have."""
    return frozenset(field.name for field in SAMPLING_FIELDS if api in field.apis)


def of_type(*types: FieldType) -> frozenset[str]:
    return frozenset(field.name for field in SAMPLING_FIELDS if field.type in types)


def accepted_by(
    options: Mapping[str, Any], known: Collection[str], *, engine: str, drop: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The options that an engine has a place for, and the names of those that were dropped.

    `engine` says in words what the request is written for, as "an OpenAI completions engine".
    Raises: GatewayError(UNSUPPORTED) that names what has no place, where it is not to be dropped.
    """
    lost = [name for name in options if name not in known]
    if lost and not drop:
        names = ", ".join(f"'{name}'" for name in lost)
        what = f"{names} cannot be told to {engine}; leave it out, or set 'unsupported: drop' on the engine"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return {name: value for name, value in options.items() if name in known}, lost
