"""Requests of OpenAI's responses, written for an engine that takes them (vLLM, llama.cpp, Ollama, OpenAI itself).

Source: OpenAI API reference, "Create a model response"; vLLM's fields beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.canonical import Generation, Media, Message, Part, Reasoning, Text, Tool, split_data_url
from gateway.protocol.llm.json_fields import Fields, dumped
from gateway.protocol.llm.openai_options import written_thinking
from gateway.protocol.llm.sampling_fields import SAMPLING_FIELDS, accepted_by
from gateway.protocol.operations import LlmApi

ENGINE = "an OpenAI responses engine"

_AS_THEY_ARE = [field.name for field in SAMPLING_FIELDS if LlmApi.RESPONSES in field.apis]
_KNOWN = {
    *_AS_THEY_ARE,
    *("max_tokens", "tool_choice", "response_format", "verbosity", "reasoning_effort", "logprobs"),
}


def write_request(generation: Generation, *, model: str, drop: bool) -> tuple[bytes, list[str]]:
    """The body for `/v1/responses`, and the names of the dropped options. Nothing is to be stored."""
    requested, approximated = written_thinking(dict(generation.options), drop)
    if any(message.name and message.role != "tool" for message in generation.messages):
        requested["messages.name"] = True
    options, lost = accepted_by(requested, _KNOWN, engine=ENGINE, drop=drop)
    body: Fields = {"model": model, "input": _input(generation), "store": False}
    body |= {name: options[name] for name in _AS_THEY_ARE if name in options}
    if "max_tokens" in options:
        body["max_output_tokens"] = options["max_tokens"]
    if "reasoning_effort" in options:
        body["reasoning"] = {"effort": options["reasoning_effort"]}
    text = {"format": format_of(options["response_format"])} if "response_format" in options else {}
    if "verbosity" in options:
        text["verbosity"] = options["verbosity"]
    if text:
        body["text"] = text
    if "logprobs" in options:
        body |= {"top_logprobs": options["logprobs"], "include": ["message.output_text.logprobs"]}
    if generation.tools:
        body["tools"] = [tool_fields(tool) for tool in generation.tools]
    if "tool_choice" in options:
        body["tool_choice"] = choice_of(options["tool_choice"])
    if generation.stream:
        body["stream"] = True
    return dumped(body), approximated + lost


def _input(generation: Generation) -> str | list[Fields]:
    if isinstance(generation.prompt, str):
        return generation.prompt
    if generation.prompt is not None:
        raise unsupported(f"a prompt of token ids cannot be told to {ENGINE}; send text")
    items: list[Fields] = []
    for message in generation.messages:
        if message.role == "tool":
            output = _content(message)
            items.append({"type": "function_call_output", "call_id": message.tool_call_id, "output": output})
        elif message.role == "assistant":
            _assistant(message, items)
        else:
            items.append({"type": "message", "role": message.role, "content": _content(message)})
    return items


def _assistant(message: Message, items: list[Fields]) -> None:
    """Appends what the model thought, said and called, each an item of its own."""
    for part in message.parts:
        if isinstance(part, Reasoning):
            content = [{"type": "reasoning_text", "text": part.text}] if part.text else []
            item: Fields = {"type": "reasoning", "id": f"rs_{len(items)}", "summary": [], "content": content}
            items.append(item | ({"encrypted_content": part.signature} if part.signature else {}))
        elif isinstance(part, Media):
            raise unsupported(f"{part.kind} of the assistant's cannot be told to {ENGINE}")
    # A string: for a list some engines want the ids and states of an output, which no client has to give.
    if message.text or not (message.tool_calls or message.parts):
        items.append({"type": "message", "role": "assistant", "content": message.text})
    for call in message.tool_calls:
        fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments or "{}"}
        items.append({"type": "function_call", **fields})


def _content(message: Message) -> str | list[Fields]:
    if all(isinstance(part, Text) for part in message.parts) and len(message.parts) <= 1:
        return message.text
    return [_part(part) for part in message.parts]


def _part(part: Part) -> Fields:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Reasoning):
        raise unsupported(f"reasoning of any but the assistant cannot be told to {ENGINE}")
    if part.kind == "image":
        return {"type": "input_image", "image_url": part.url, "detail": part.detail.get("detail", "auto")}
    inside = split_data_url(part.url)
    if part.kind == "audio":
        if inside is None:
            raise unsupported(f"the address of a sound cannot be told to {ENGINE}; send it whole")
        form = part.detail.get("format") or inside[0].removeprefix("audio/")
        return {"type": "input_audio", "input_audio": {"data": inside[1], "format": form}}
    name = part.detail.get("filename")
    if inside is None:
        return {"type": "input_file", "file_url": part.url} | ({"filename": name} if name else {})
    return {"type": "input_file", "filename": name or "file", "file_data": part.url}


def format_of(response_format: Mapping[str, Any]) -> Fields:
    """`text.format` of chat's `response_format`."""
    return {"type": response_format.get("type"), **response_format.get("json_schema", {})}


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
