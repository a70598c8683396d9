"""Parses sampling parameters under vLLM's, OpenAI's, TensorRT-LLM's and transformers' names.

Source: vLLM `SamplingParams` and `docs/serving/openai_compatible_server`; OpenAI, "Create completion" and "Create chat
completion"; TensorRT-LLM backend, `inflight_batcher_llm` inputs; transformers `GenerationConfig`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core.errors import invalid
from engines.paged.base.json_fields import read_object
from engines.paged.base.types import SamplingParams
from engines.paged.sampling.field_values import (
    Reader,
    anything,
    biases,
    flag,
    ids,
    number,
    one_of,
    text,
    texts,
    whole,
    wrong,
)
from engines.paged.sampling.grammar_fields import GRAMMAR_FIELDS, read_grammar
from gateway.protocol.llm.sampling_fields import SAMPLING_FIELDS, FieldType, SamplingField

# As in vLLM: a temperature so near to 0 would overflow in the division, and means greedy.
_GREEDY_BELOW = 1e-5
_MAX_LOGPROBS = 20
# -1 asks for no seed in vLLM.
_NO_SEED = -1


def _reader(field: SamplingField) -> Reader:
    match field.type:
        case FieldType.INTEGER:
            return whole(int(field.low), None if field.high == math.inf else int(field.high))
        case FieldType.NUMBER:
            return number(field.low, field.high, above=field.above_low)
    return _READERS[field.type]


_READERS = {FieldType.FLAG: flag, FieldType.TEXTS: texts, FieldType.TOKEN_IDS: ids, FieldType.MAP: biases}

# A request's field: the parameter that it sets, and the reader of its value.
FIELDS: Mapping[str, tuple[str, Reader]] = {
    **{
        name: (field.name, _reader(field))
        for field in SAMPLING_FIELDS
        if field.in_engine
        for name in (field.name, *field.engine_aliases)
    },
    "include_stop_str_in_output": ("include_stop_str_in_output", flag),
    "early_stopping": ("early_stopping", flag),
    "extra_args": ("extra", anything),
    "vllm_xargs": ("extra", anything),
}

# Fields that are read together.
_LOGPROBS = ("logprobs", "top_logprobs", "prompt_logprobs")
_MODES = ("do_sample", "use_beam_search")

# Other engines' fields, accepted only where they have no effect.
IDLE_FIELDS: Mapping[str, Reader] = {
    "pad_id": anything,
    "detokenize": one_of(True),
    "spaces_between_special_tokens": flag,
    "typical_p": one_of(1),
    "epsilon_cutoff": one_of(0),
    "eta_cutoff": one_of(0),
    "top_p_decay": one_of(1),
    "beam_search_diversity_rate": one_of(0),
    "no_repeat_ngram_size": one_of(0),
    "guided_decoding_backend": text,
    "guided_whitespace_pattern": one_of(""),
}

_KNOWN = (*FIELDS, *_LOGPROBS, *_MODES, *GRAMMAR_FIELDS, *IDLE_FIELDS)


def read_params(fields: Mapping[str, Any], defaults: SamplingParams | None = None) -> SamplingParams:
    """A request's parameters, `defaults` where it has no field. None counts as no field.

    Raises: EngineError that names the field, its value, and what is allowed; for an unknown field the nearest known
    one.
    """
    defaults = defaults or SamplingParams()
    present = {name: value for name, value in fields.items() if value is not None}
    read: dict[str, Any] = {}
    names: dict[str, str] = {}  # the request's field that each was read from
    for name, value in present.items():
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            hint = f"did you mean {near[0]}?" if near else "leave it out"
            raise invalid(f"{name}: no such field; {hint}")
        if name in IDLE_FIELDS:
            IDLE_FIELDS[name](name, value)
        if name in FIELDS:
            field, reader = FIELDS[name]
            parsed = reader(name, value)
            if field in read and isinstance(parsed, tuple):
                parsed = tuple(dict.fromkeys((*read[field], *parsed)))
            elif field in read and read[field] != parsed:
                raise invalid(f"{name}: it is the same as {names[field]}, which says something else: send one of them")
            read[field], names[field] = parsed, name
    read |= _logprobs(present) | _modes(present, read, defaults)
    if (grammar := read_grammar(present)) is not None:
        read["grammar"] = grammar
    params = _normal(replace(defaults, **read))
    _check(params, names)
    return params


def read_default_params(folder: Path, defaults: SamplingParams | None = None) -> SamplingParams:
    """The recommendations of a model's generation_config.json: temperature, top_p, top_k, min_p, repetition_penalty,
    max_new_tokens; `do_sample: false` is greedy.

    Raises: EngineError that names the file and the field.
    """
    defaults = defaults or SamplingParams()
    path = folder / "generation_config.json"
    config = read_object(path)
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "do_sample")
    recommended = {name: config[name] for name in names if config.get(name) is not None}
    try:
        return read_params(recommended, defaults)
    except Exception as error:
        raise invalid(f"{path}: {error}") from error


def _logprobs(present: Mapping[str, Any]) -> dict[str, int | None]:
    """`logprobs` is a number, or true or false beside `top_logprobs`."""
    read: dict[str, int | None] = {}
    count = whole(0, _MAX_LOGPROBS)
    for name in ("logprobs", "prompt_logprobs"):
        if name in present:
            value = present[name]
            is_flag = isinstance(value, bool) or (isinstance(value, str) and value.lower() in ("true", "false"))
            read[name] = (0 if flag(name, value) else None) if is_flag else count(name, value)
    if "top_logprobs" in present and (top := count("top_logprobs", present["top_logprobs"])):
        if read.get("logprobs") is None:
            raise wrong("top_logprobs", top, "0 or absent where logprobs is not true")
        read["logprobs"] = top
    return read


def _modes(present: Mapping[str, Any], read: Mapping[str, Any], defaults: SamplingParams) -> dict[str, Any]:
    """`do_sample: false` is greedy; true restores sampling where the default is greedy; `use_beam_search` takes
    `best_of`, else `n`, as its width."""
    modes: dict[str, Any] = {}
    if "do_sample" in present:
        if not flag("do_sample", present["do_sample"]):
            modes["temperature"] = 0.0
        elif "temperature" not in read and not defaults.temperature:
            modes["temperature"] = 1.0
    if "use_beam_search" in present:
        if not flag("use_beam_search", present["use_beam_search"]):
            modes["beam_width"] = 0
        elif "beam_width" not in read:
            modes["beam_width"] = read.get("best_of") or read.get("n", 1)
            if modes["beam_width"] < 2:
                raise invalid("use_beam_search: true needs a beam_width of at least 2")
    return modes


def _normal(params: SamplingParams) -> SamplingParams:
    """Values without effect in one form."""
    return replace(
        params,
        temperature=params.temperature if params.temperature >= _GREEDY_BELOW else 0.0,
        top_k=max(params.top_k, 0),
        beam_width=params.beam_width if params.beam_width > 1 else 0,
        seed=None if params.seed == _NO_SEED else params.seed,
    )


def _check(params: SamplingParams, names: Mapping[str, str]) -> None:
    """Constraints between fields."""
    if params.min_tokens > params.max_tokens:
        most = f"at most {names.get('max_tokens', 'max_tokens')}, {params.max_tokens}"
        raise wrong(names.get("min_tokens", "min_tokens"), params.min_tokens, most)
    if params.best_of is not None and params.best_of < params.n:
        raise wrong("best_of", params.best_of, f"at least n, {params.n}")
    if params.beam_width and params.grammar is not None:
        raise invalid("beam_width: beam search cannot follow a grammar: send one of them")
    if not isinstance(params.extra, Mapping):
        raise wrong(names.get("extra", "extra_args"), params.extra, "an object")
