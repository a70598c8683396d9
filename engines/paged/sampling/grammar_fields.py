"""The grammar of a request: OpenAI's response_format, vLLM's structured_outputs and guided_*, TensorRT-LLM's
guided_decoding_guide."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from engines.core.errors import invalid
from engines.paged.base.types import GrammarSpec
from engines.paged.sampling.field_values import flag, text, wrong

# vLLM's names inside `structured_outputs` and, prefixed by guided_, as fields of a request.
_KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark", "json_object": "json_object"}
_GUIDED = {f"guided_{name}": kind for name, kind in _KINDS.items()}
_OBJECTS = ("structured_outputs", "guided_decoding")
# TensorRT-LLM's.
_GUIDE, _GUIDE_TYPE = "guided_decoding_guide", "guided_decoding_guide_type"
_GUIDE_TYPES = {"json": "json_object", "json_schema": "json_schema", "regex": "regex", "ebnf_grammar": "lark"}
# Fields of vLLM's `structured_outputs` without effect here.
_IDLE = frozenset({"disable_fallback", "disable_any_whitespace", "disable_additional_properties", "backend"})

GRAMMAR_FIELDS = ("response_format", *_OBJECTS, *_GUIDED, _GUIDE, _GUIDE_TYPE)


def read_grammar(fields: Mapping[str, Any]) -> GrammarSpec | None:
    """Raises: EngineError that names the field, or two fields that contradict each other."""
    specs = list(_specs(fields))
    if len(specs) > 1:
        raise invalid(f"{specs[1][0]}: {specs[0][0]} says what the text must be already: send one of them")
    return specs[0][1] if specs else None


def _specs(fields: Mapping[str, Any]) -> Iterator[tuple[str, GrammarSpec]]:
    if "response_format" in fields and (spec := _of_response_format(fields["response_format"])) is not None:
        yield "response_format", spec
    for name in _OBJECTS:
        if name in fields:
            yield from _of_structured(name, fields[name])
    for name, kind in _GUIDED.items():
        if name in fields and (spec := _spec(name, kind, fields[name])) is not None:
            yield name, spec
    if _GUIDE_TYPE in fields:
        kind_name = fields[_GUIDE_TYPE]
        if kind_name not in _GUIDE_TYPES:
            raise wrong(_GUIDE_TYPE, kind_name, f"one of {', '.join(_GUIDE_TYPES)}")
        kind = _GUIDE_TYPES[kind_name]
        if kind == "json_object":
            yield _GUIDE_TYPE, GrammarSpec(kind)
        elif (spec := _spec(_GUIDE, kind, fields.get(_GUIDE))) is not None:
            yield _GUIDE, spec
    elif _GUIDE in fields:
        raise invalid(f"{_GUIDE}: it needs {_GUIDE_TYPE}, one of {', '.join(_GUIDE_TYPES)}")


def _of_response_format(value: Any) -> GrammarSpec | None:
    right = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": {...}}}'
    if not isinstance(value, Mapping):
        raise wrong("response_format", value, right)
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            # some servers take a schema beside it
            return _spec("response_format.schema", "json_schema", value["schema"]) if "schema" in value else ANY_OBJECT
        case "json_schema":
            schema = value.get("json_schema")
            if not isinstance(schema, Mapping):
                raise wrong("response_format.json_schema", schema, 'an object with "schema", a JSON schema')
            return _spec("response_format.json_schema.schema", "json_schema", schema.get("schema"))
        case other:
            raise wrong("response_format.type", other, "text, json_object or json_schema")


ANY_OBJECT = GrammarSpec("json_object")


def _of_structured(name: str, value: Any) -> Iterator[tuple[str, GrammarSpec]]:
    if not isinstance(value, Mapping):
        raise wrong(name, value, f"an object with one of {', '.join(_KINDS)}")
    for key, schema in value.items():
        if schema is None or key in _IDLE:
            continue
        if key not in _KINDS:
            raise invalid(f"{name}.{key}: no such field; known are {', '.join(_KINDS)}")
        if (spec := _spec(f"{name}.{key}", _KINDS[key], schema)) is not None:
            yield f"{name}.{key}", spec


def _spec(name: str, kind: str, value: Any) -> GrammarSpec | None:
    match kind:
        case "json_object":
            return ANY_OBJECT if flag(name, value) else None
        case "json_schema":
            return GrammarSpec(kind, _schema(name, value))
        case "choice":
            if not isinstance(value, list | tuple) or not value or not all(isinstance(each, str) for each in value):
                raise wrong(name, value, "a list of one text or more")
            return GrammarSpec(kind, json.dumps(list(value), ensure_ascii=False))
        case _:
            if not text(name, value).strip():
                raise wrong(name, value, f"a {'regular expression' if kind == 'regex' else 'grammar'}")
            return GrammarSpec(kind, value)


def _schema(name: str, value: Any) -> str:
    """A schema is an object, or true; or the text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise wrong(name, value, "a JSON schema, which this text is not: it is no JSON") from None
    if value is not True and not isinstance(value, Mapping):
        raise wrong(name, value, "a JSON schema, an object")
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise wrong(name, "...", "a JSON schema") from None
