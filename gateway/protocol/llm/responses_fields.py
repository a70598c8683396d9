"""What OpenAI's responses write otherwise than its chat completions, both ways: formats, tools, choices, items, usage.

Source: OpenAI API reference, "Responses".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.protocol.llm.canonical import Generation, Tool

Fields = dict[str, Any]


def format_of(response_format: Mapping[str, Any]) -> Fields:
    """`text.format` of chat's `response_format`."""
    return {"type": response_format.get("type"), **response_format.get("json_schema", {})}


def response_format_of(form: Mapping[str, Any]) -> Fields | None:
    """Chat's `response_format` of `text.format`; None for text, the default."""
    match form.get("type"):
        case "text":
            return None
        case "json_schema":
            schema = {name: value for name, value in form.items() if name != "type" and value is not None}
            return {"type": "json_schema", "json_schema": schema}
    return dict(form)


def choice_of(tool_choice: Any) -> Any:
    """A `tool_choice` of responses', of chat's."""
    if isinstance(tool_choice, dict):
        return {"type": "function", "name": tool_choice.get("function", {}).get("name", "")}
    return tool_choice


def tool_fields(tool: Tool) -> Fields:
    fields: Fields = {"type": "function", "name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    return {**fields, "parameters": dict(tool.parameters), "strict": tool.strict}


def request_fields_of(generation: Generation) -> Fields:
    """The fields of a response that tell its request. Nothing is ever stored."""
    options = generation.options
    first = generation.messages[0] if generation.messages else None
    text: Fields = {"format": format_of(options.get("response_format") or {"type": "text"})}
    if "verbosity" in options:
        text["verbosity"] = options["verbosity"]
    return {
        "background": False,
        "instructions": first.text if first is not None and first.role == "system" else None,
        "max_output_tokens": options.get("max_tokens"),
        "metadata": options.get("metadata") or {},
        "parallel_tool_calls": options.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": options.get("reasoning_effort"), "summary": None},
        "store": False,
        "temperature": options.get("temperature"),
        "text": text,
        "tool_choice": choice_of(options.get("tool_choice", "auto")),
        "tools": [tool_fields(tool) for tool in generation.tools],
        "top_logprobs": options.get("logprobs", 0),
        "top_p": options.get("top_p"),
        "truncation": "disabled",
        "user": options.get("user"),
    }
