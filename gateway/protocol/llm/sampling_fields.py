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
from functools import partial
from typing import Any

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.json_fields import NUMBER, Kind
from gateway.protocol.operations import LlmApi

_OPENAI = frozenset({LlmApi.CHAT, LlmApi.COMPLETIONS})
_CHAT = frozenset({LlmApi.CHAT})
_COMPLETIONS = frozenset({LlmApi.COMPLETIONS})
_RESPONSES = frozenset({LlmApi.RESPONSES})
_MESSAGES = frozenset({LlmApi.MESSAGES})


class FieldType(Enum):
    """What a field's value is, and its type in JSON."""

    INTEGER = "integer", int
    NUMBER = "number", NUMBER
    FLAG = "flag", bool
    TEXT = "text", str
    TEXTS = "texts", list
    TOKEN_IDS = "token ids", list
    MAP = "map", dict
    OBJECT = "object", dict  # or a word for one

    @property
    def json_type(self) -> Kind:
        kind: Kind = self.value[1]
        return kind


@dataclass(frozen=True, slots=True)
class SamplingField:
    """One field. `name` is OpenAI's where it has one, else vLLM's, which most engines took over."""

    name: str
    type: FieldType
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


def _field(name: str, type: FieldType, *, aliases: str = "", engine_aliases: str = "", **columns: Any) -> SamplingField:
    """A row; several names in a column are separated by spaces."""
    names = {"aliases": aliases, "tensors": _TENSORS.get(name, ""), "engine_aliases": engine_aliases}
    columns |= {column: tuple(text.split()) for column, text in names.items()}
    return SamplingField(name, type, **columns)


_INTEGER, _NUMBER, _FLAG, _TEXT = FieldType.INTEGER, FieldType.NUMBER, FieldType.FLAG, FieldType.TEXT
_TEXTS, _IDS, _MAP, _OBJECT = FieldType.TEXTS, FieldType.TOKEN_IDS, FieldType.MAP, FieldType.OBJECT
_MAX_CHOICES = 128
_MAX_FACTOR = 100  # of temperature and penalties: beyond it float32 overflows sooner or later
_NOWHERE: frozenset[LlmApi] = frozenset()
_NOT_MESSAGES = _OPENAI | _RESPONSES
_ANY_API = _NOT_MESSAGES | _MESSAGES

# The tensors of V2 models, newest backend first.
_TENSORS = {
    "max_tokens": "max_tokens sampling_param_max_tokens",
    "min_tokens": "min_tokens min_length",
    "temperature": "temperature sampling_param_temperature",
    "top_p": "top_p runtime_top_p sampling_param_top_p",
    "top_k": "top_k runtime_top_k sampling_param_top_k",
    "min_p": "min_p",
    "seed": "seed random_seed sampling_param_seed",
    "n": "num_return_sequences n",
    "best_of": "best_of sampling_param_best_of",
    "presence_penalty": "presence_penalty sampling_param_presence_penalty",
    "frequency_penalty": "frequency_penalty sampling_param_frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "length_penalty": "length_penalty len_penalty",
    "bad_words": "bad_words",
    "stop": "stop_words stop sampling_param_stop",
    "beam_width": "beam_width",
}

_engine = partial(_field, in_engine=True)
_vllm = partial(_field, in_engine=True, in_vllm_backend=True)

SAMPLING_FIELDS = (
    _vllm(  # reasoning included
        "max_tokens",
        _INTEGER,
        apis=_OPENAI | _MESSAGES,
        low=1,
        aliases="max_completion_tokens n_predict",
        engine_aliases="max_completion_tokens max_new_tokens",
    ),
    _vllm("min_tokens", _INTEGER, idle=(0,), low=0, engine_aliases="min_length min_new_tokens"),
    _vllm("temperature", _NUMBER, apis=_ANY_API, low=0, high=_MAX_FACTOR),
    _vllm("top_p", _NUMBER, apis=_ANY_API, low=0, high=1, above_low=True, engine_aliases="runtime_top_p"),
    _vllm("top_k", _INTEGER, apis=_ANY_API, low=-1, high=(1 << 31) - 1, engine_aliases="runtime_top_k"),
    _vllm("min_p", _NUMBER, low=0, high=1),
    _vllm("seed", _INTEGER, apis=_NOT_MESSAGES, low=-(1 << 63), high=(1 << 64) - 1, engine_aliases="random_seed"),
    _vllm("ignore_eos", _FLAG, idle=(False,), apis=_NOT_MESSAGES),
    _vllm("n", _INTEGER, idle=(1,), low=1, high=_MAX_CHOICES),
    _engine("best_of", _INTEGER, idle=(1,), apis=_COMPLETIONS, low=1, high=_MAX_CHOICES),
    _vllm("presence_penalty", _NUMBER, idle=(0,), low=-2, high=2),
    _vllm("frequency_penalty", _NUMBER, idle=(0,), low=-2, high=2),
    _vllm(
        "repetition_penalty",
        _NUMBER,
        apis=_NOT_MESSAGES,
        low=1 / _MAX_FACTOR,
        high=_MAX_FACTOR,
        aliases="repeat_penalty",
    ),
    _engine("length_penalty", _NUMBER, idle=(1,), engine_aliases="len_penalty"),
    _engine("logit_bias", _MAP, idle=({},), apis=_NOT_MESSAGES),  # token id (as text) to number
    _field("echo", _FLAG, idle=(False,), apis=_COMPLETIONS),  # the prompt stands before the text
    _field("suffix", _TEXT, idle=("",), apis=_COMPLETIONS),  # what follows the text to insert
    _vllm("skip_special_tokens", _FLAG, idle=(True,), apis=_NOT_MESSAGES),
    _field("parallel_tool_calls", _FLAG, idle=(True,), apis=_CHAT | _RESPONSES),
    _field("reasoning_effort", _TEXT, apis=_CHAT),  # none, minimal, low, medium, high
    _field(  # a budget; 0 switches reasoning off
        "thinking_tokens", _INTEGER, idle=(-1,), apis=_NOWHERE, aliases="thinking_token_budget thinking_budget_tokens"
    ),
    _field("user", _TEXT, apis=_NOT_MESSAGES),  # whose request it is
    _field("metadata", _MAP, idle=({},), apis=_NOT_MESSAGES),  # of str: for the provider's own records
    _field("priority", _INTEGER, idle=(0,), apis=_NOT_MESSAGES),  # the scheduler's
    _vllm("stop_token_ids", _IDS, idle=([],), engine_aliases="end_id"),
    _vllm("bad_words", _TEXTS, idle=([],)),  # texts that must not occur
    # Those that each API writes in a form of its own.
    _vllm("stop", _TEXTS, apis=_NOT_MESSAGES, engine_aliases="stop_words stop_sequences"),
    _field("logprobs", _INTEGER),  # alternatives beside each token's own log probability; 0: its own alone
    _field("prompt_logprobs", _INTEGER, apis=_NOWHERE),  # no reply has a place for them
    # OpenAI's chat forms: {type: json_object}, or {type: json_schema, json_schema: {name, schema}}; and auto, none,
    # required or {type: function, function: {name}}.
    _field("response_format", _OBJECT),
    _field("tool_choice", _OBJECT, apis=_CHAT),
    _engine("beam_width", _INTEGER, apis=_NOWHERE, low=0, high=_MAX_CHOICES, engine_aliases="num_beams"),
)
OPTIONS: Mapping[str, SamplingField] = {field.name: field for field in SAMPLING_FIELDS}
# Fields with a form of their own in OpenAI's bodies, which `openai_options` reads one by one.
READ_APART = frozenset({"stop", "logprobs", "prompt_logprobs", "response_format", "tool_choice", "beam_width"})


# For a provider's records and caches. They change no answer, so an engine without a place for them loses nothing:
# `truncation` says what becomes of a conversation that is too long, which such an engine refuses, `max_tool_calls`
# counts those that a provider's own servers make, and a `prediction` saves time.
WITHOUT_EFFECT = frozenset(
    {
        *("user", "safety_identifier", "metadata", "store", "truncation"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control"),
        *("client_metadata", "max_tool_calls", "prediction"),
    }
)


def fields_of(api: LlmApi) -> frozenset[str]:
    """The names of the fields that an API's bodies have."""
    return frozenset(field.name for field in SAMPLING_FIELDS if api in field.apis)


def accepted_by(
    options: Mapping[str, Any], known: Collection[str], *, engine: str, drop: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The options that an engine has a place for, and the names of those that were dropped, but for WITHOUT_EFFECT.

    `engine` says in words what the request is written for, as "an OpenAI completions engine".
    Raises: GatewayError(UNSUPPORTED) that names what has no place, where it is not to be dropped.
    """
    lost = [name for name in options if name not in known and name not in WITHOUT_EFFECT]
    if lost and not drop:
        names = ", ".join(f"'{name}'" for name in lost)
        raise unsupported(f"{names} cannot be told to {engine}; leave it out, or set 'unsupported: drop' on the engine")
    return {name: value for name, value in options.items() if name in known}, lost
