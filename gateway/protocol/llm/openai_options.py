"""The options of OpenAI's chat and completions bodies, and of what engines added to them. Readers take what they read
out of `fields`; they raise GatewayError(BAD_REQUEST) that names the malformed field.

Sources: OpenAI API reference; vLLM's "extra parameters", SGLang's and llama.cpp's servers, OpenRouter's `reasoning`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.canonical import Tool
from gateway.protocol.llm.json_fields import Fields, bad_request, checked, objects, optional, required, texts
from gateway.protocol.llm.sampling_fields import READ_APART, SAMPLING_FIELDS

# Each name that a field has, the field, and the type of its value; of several names the first that is there counts.
_SPELLINGS = [
    (name, field.name, field.type.json_type)
    for field in SAMPLING_FIELDS
    if field.name not in READ_APART
    for name in (*field.aliases, field.name)
]
# What a field says when it says nothing: many clients send all that they know of.
_IDLE: dict[str, tuple[Any, ...]] = {field.name: field.idle for field in SAMPLING_FIELDS} | {
    **dict.fromkeys(("include_reasoning", "separate_reasoning", "stream_reasoning"), (True,)),
    **dict.fromkeys(("spaces_between_special_tokens", "add_generation_prompt"), (True,)),
    **dict.fromkeys(("use_beam_search", "include_stop_str_in_output", "continue_final_message"), (False,)),
    **dict.fromkeys(("store", "return_token_ids"), (False,)),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    "truncation": ("disabled",),
    "modalities": (["text"],),
    "chat_template_kwargs": ({},),
}
# Fields of engines that have no other name, and that both bodies of an engine that knows them have.
EXTRAS = frozenset(
    {
        *("include_stop_str_in_output", "spaces_between_special_tokens", "allowed_token_ids", "truncate_prompt_tokens"),
        *("guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "cache_salt", "vllm_xargs"),
        *("regex", "ebnf", "stop_regex", "no_stop_trim", "lora_path", "custom_params"),
        *("grammar", "typical_p", "mirostat", "mirostat_tau", "mirostat_eta", "repeat_last_n", "cache_prompt"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "xtc_probability", "xtc_threshold", "samplers"),
    }
)
_SCHEMA_FIELDS = ("guided_json", "json_schema")


def read_options(fields: Fields) -> dict[str, Any]:
    """The options that are left in these fields, by their canonical names; what is not known keeps its own."""
    options: dict[str, Any] = {}
    for name, field, kind in _SPELLINGS:
        value = fields.pop(name, None)
        if value is not None:
            if kind is int and isinstance(value, float) and value.is_integer():
                value = int(value)
            options.setdefault(field, checked(value, kind, name))
    if (stop := fields.pop("stop", None)) is not None:
        options["stop"] = [stop] if isinstance(stop, str) else texts(stop, "stop")
    options |= _thinking(fields) | _response_format(fields)
    options |= {name: value for name, value in fields.items() if value is not None}
    if options.get("stop") == []:
        del options["stop"]
    return {name: value for name, value in options.items() if value not in _IDLE.get(name, ())}


def _thinking(fields: Fields) -> dict[str, Any]:
    """How much to think, as OpenRouter (`reasoning`) and Zhipu or Anthropic (`thinking`) ask it in a chat's body."""
    options: dict[str, Any] = {}
    reasoning = fields.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.keys() <= {"effort", "max_tokens"}:
        del fields["reasoning"]
        if (effort := optional(reasoning, "effort", str, "reasoning")) is not None:
            options["reasoning_effort"] = effort
        if (tokens := optional(reasoning, "max_tokens", int, "reasoning")) is not None:
            options["thinking_tokens"] = tokens
    thinking = fields.get("thinking")
    if thinking == {"type": "disabled"}:
        del fields["thinking"]
        options["thinking_tokens"] = 0
    elif isinstance(thinking, dict) and thinking.keys() == {"type", "budget_tokens"} and thinking["type"] == "enabled":
        del fields["thinking"]
        options["thinking_tokens"] = required(thinking, "budget_tokens", int, "thinking")
    return options


def _response_format(fields: Fields) -> dict[str, Any]:
    """The form that the text must have. Schemas of vLLM, SGLang and llama.cpp that stand elsewhere become OpenAI's."""
    formats: list[tuple[str, Any]] = []
    if (requested := fields.pop("response_format", None)) is not None:
        formats.append(("response_format", _openai_format(checked(requested, dict, "response_format"))))
    schemas = {name: fields.pop(name, None) for name in _SCHEMA_FIELDS}
    formats += [(name, _schema_format(schema, name)) for name, schema in schemas.items() if schema is not None]
    outputs = fields.get("structured_outputs")
    if isinstance(outputs, dict) and [name for name, value in outputs.items() if value is not None] == ["json"]:
        formats.append(("structured_outputs", _schema_format(outputs["json"], "structured_outputs.json")))
        del fields["structured_outputs"]
    if len(formats) > 1:
        raise bad_request(f"'{formats[0][0]}' and '{formats[1][0]}' both say what form the text has; leave one out")
    return {"response_format": formats[0][1]} if formats and formats[0][1]["type"] != "text" else {}


def _openai_format(fields: Fields) -> Fields:
    """Schemas stand also as `schema` beside the type (llama.cpp, Together) and as `value` (TGI)."""
    kind = required(fields, "type", str, "response_format")
    schema = fields.get("schema", fields.get("value"))
    if kind in ("json_object", "json_schema", "json") and isinstance(schema, dict):
        return _schema_format(schema, "response_format")
    if kind == "json_schema":
        json_schema = required(fields, "json_schema", dict, "response_format")
        required(json_schema, "schema", dict, "response_format.json_schema")
        return {"type": kind, "json_schema": {"name": "output", **json_schema}}
    return fields


def _schema_format(schema: Any, name: str) -> Fields:
    """A schema is an object, or JSON as a string."""
    if isinstance(schema, str):
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError as error:
            raise bad_request(f"'{name}' is not a JSON schema: {error}") from error
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": checked(schema, dict, name)}}


def written_thinking(options: dict[str, Any], drop: bool) -> tuple[dict[str, Any], list[str]]:
    """The options with a budget of thinking told as an effort, which is all that OpenAI has a word for: 0 is `none`,
    and any other, where that may be dropped, the nearest effort."""
    tokens = options.get("thinking_tokens")
    if tokens is None or (tokens and not drop):
        return options, []
    rest = {name: value for name, value in options.items() if name != "thinking_tokens"}
    effort = "none" if not tokens else "low" if tokens <= 2048 else "medium" if tokens <= 8192 else "high"
    return {"reasoning_effort": effort} | rest, ["thinking_tokens"] if tokens else []


def read_tools(fields: Fields) -> tuple[Tool, ...]:
    """The tools, and the functions of before there were tools; UNSUPPORTED for tools that are no functions."""
    tools = []
    for where, tool in objects(fields.pop("tools", None) or [], "tools"):
        if tool.get("type", "function") != "function":
            raise unsupported(f"'{where}.type' is '{tool['type']}'; only functions can be told to another engine")
        if "function" in tool or "name" not in tool:
            tool, where = required(tool, "function", dict, where), f"{where}.function"
        tools.append(_tool(tool, where))  # a flat one, of the responses' form, too
    tools += [_tool(function, where) for where, function in objects(fields.pop("functions", None) or [], "functions")]
    return tuple(tools)


def _tool(function: Fields, where: str) -> Tool:
    return read_tool(function, where, function, optional(function, "parameters", dict, where) or {})


def read_tool(tool: Fields, where: str, known: Collection[str], parameters: Fields) -> Tool:
    """A tool, all of whose fields that say something must be known."""
    name = required(tool, "name", str, where)
    for field, value in tool.items():
        if value and field not in known and value != ["direct"]:
            raise bad_request(f"'{where}.{field}' (of tool '{name}') cannot be told to an engine; leave it out")
    description = optional(tool, "description", str, where) or ""
    return Tool(name, description, parameters, optional(tool, "strict", bool, where))


def with_others(
    options: dict[str, Any], fields: Fields, read: Collection[str], idle: Mapping[str, Collection[Any]]
) -> dict[str, Any]:
    """The options with all other fields, by their own names, that say something."""
    for name, value in fields.items():
        if name not in read and value is not None and value not in idle.get(name, ()):
            options.setdefault(name, value)
    return options


def written_tool(tool: Tool) -> Fields:
    function: Fields = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def read_tool_choice(fields: Fields) -> dict[str, Any]:
    """`tool_choice`, or `function_call` of before."""
    choice, name = fields.pop("tool_choice", None), "tool_choice"
    before = fields.pop("function_call", None)
    if choice is None and before is not None:
        name = "function_call"
        choice = {"function": before} if isinstance(before, dict) else before
    if choice is None:
        return {}
    if isinstance(choice, dict) and choice.get("type", "function") == "function":
        function = choice.get("function", choice)
        called = required(checked(function, dict, f"{name}.function"), "name", str, name)
        return {"tool_choice": {"type": "function", "function": {"name": called}}}
    if choice == "any":  # Mistral's, which LangChain sends
        choice = "required"
    if choice not in ("auto", "none", "required"):
        raise bad_request(f"'{name}' must be auto, none, required or one function")
    return {"tool_choice": choice}


def read_stream(fields: Fields) -> tuple[bool, bool, dict[str, Any]]:
    """Whether a stream is wanted, whether its usage is, and options that ask more of it."""
    stream = bool(optional(fields, "stream", bool))
    requested = optional(fields, "stream_options", dict) or {}
    fields.pop("stream", None)
    fields.pop("stream_options", None)
    include_usage = bool(optional(requested, "include_usage", bool, "stream_options"))
    more = {
        f"stream_options.{name}": value
        for name, value in requested.items()
        if name not in ("include_usage", "include_obfuscation") and value
    }
    return stream, stream and include_usage, more if stream else {}
