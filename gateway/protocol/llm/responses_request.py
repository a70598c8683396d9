"""Requests of OpenAI's responses, read from clients and written for engines that take them (vLLM, llama.cpp, Ollama,
OpenAI itself).

The gateway stores no responses: `previous_response_id`, `conversation`, `background` and references to items are
refused, and `store` is accepted and reported as false. Accepted without effect: what to include of tools that
only its servers run, `reasoning.summary` (reasoning is always sent in full), `stream_options` (a stream is never
padded), `context_management` (an engine that compacts nothing knows more, not less). Tools that OpenAI's servers run
are refused by name.

Reasoning, text and calls of one turn are items of their own in `input`; here they become one message again.

Source: OpenAI API reference, "Create a model response"; vLLM's fields beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.canonical import (
    Generation,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    data_url,
    distinguishes_by_name,
    split_data_url,
)
from gateway.protocol.llm.json_fields import (
    Fields,
    bad_request,
    checked,
    dumped,
    objects,
    optional,
    read_fields,
    required,
    texts,
)
from gateway.protocol.llm.openai_options import read_tool, with_others, written_thinking
from gateway.protocol.llm.sampling_fields import OPTIONS, SAMPLING_FIELDS, accepted_by
from gateway.protocol.operations import LlmApi

_ROLES = ("user", "assistant", "system", "developer")


def read_input(value: Any) -> list[Message]:
    """The messages of a text, which is the user's, or of items."""
    if isinstance(value, str):
        return [Message("user", (Text(value),))]
    if not isinstance(value, list):
        raise bad_request("'input' must be a string or a list of items")
    messages: list[Message] = []
    for where, item in objects(value, "input"):
        kind = item.get("type") or "message"
        if kind == "message":
            role = required(item, "role", str, where)
            if role not in _ROLES:
                raise bad_request(f"'{where}.role' must be one of {', '.join(_ROLES)}, not '{role}'")
            _append(Message(role, _parts(item.get("content"), f"{where}.content")), messages)
        elif kind == "reasoning":
            _append(Message("assistant", (_reasoning(item, where),)), messages)
        elif kind == "function_call":
            call = ToolCall(*(required(item, name, str, where) for name in ("call_id", "name", "arguments")))
            _append(Message("assistant", (), (call,)), messages)
        elif kind == "function_call_output":
            parts = _parts(item.get("output"), f"{where}.output")
            messages.append(Message("tool", parts, (), required(item, "call_id", str, where)))
        elif kind == "item_reference":
            raise bad_request(f"'{where}' is a reference: this gateway keeps no responses; send the item itself")
        else:
            raise bad_request(f"'{where}' is a '{kind}' item, which engines here cannot be given")
    return messages


def _append(message: Message, messages: list[Message]) -> None:
    """Appends a message; the assistant's joins the one before where that is the same turn and has said nothing yet."""
    before = messages[-1] if messages else message
    has_text = any(isinstance(part, Text) for part in before.parts)
    if messages and message.role == before.role == "assistant" and (message.tool_calls or not has_text):
        parts, calls = before.parts + message.parts, before.tool_calls + message.tool_calls
        messages[-1] = Message("assistant", parts, calls)
    else:
        messages.append(message)


def _reasoning(item: Fields, where: str) -> Reasoning:
    """What the model thought, in full where the item has it, else in summary."""
    name = "content" if item.get("content") else "summary"
    parts = [required(part, "text", str, path) for path, part in objects(item.get(name) or [], f"{where}.{name}")]
    return Reasoning("\n\n".join(parts), optional(item, "encrypted_content", str, where) or "")


def _parts(content: Any, where: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        raise bad_request(f"'{where}' must be a string or a list of parts")
    return tuple(_read_part(part, path) for path, part in objects(content, where))


def _read_part(part: Fields, where: str) -> Part:
    kind = required(part, "type", str, where)
    if kind in ("input_image", "input_file") and part.get("file_id") is not None:
        raise bad_request(f"'{where}.file_id': this gateway keeps no files; send the file itself")
    match kind:
        case "input_text" | "output_text" | "text":
            return Text(required(part, "text", str, where))
        case "refusal":
            return Text(required(part, "refusal", str, where))
        case "input_image":
            detail = optional(part, "detail", str, where)
            parsed = {} if detail in (None, "auto") else {"detail": detail}
            return Media("image", required(part, "image_url", str, where), parsed)
        case "input_file":
            name, url = optional(part, "filename", str, where), optional(part, "file_url", str, where)
            if url is None:
                url = required(part, "file_data", str, where)
                url = url if url.startswith("data:") else data_url("application/octet-stream", url)
            return Media("file", url, {"filename": name} if name else {})
        case "input_audio":
            audio = required(part, "input_audio", dict, where)
            form, path = required(audio, "format", str, f"{where}.input_audio"), f"{where}.input_audio"
            return Media("audio", data_url(f"audio/{form}", required(audio, "data", str, path)), {"format": form})
        case _:
            raise bad_request(f"'{where}' is a part of type '{kind}', which engines here cannot be given")


_KEPT_NOWHERE = {
    "previous_response_id": "send the whole conversation as 'input'",
    "conversation": "send the whole conversation as 'input'",
    "prompt": "send the prompt itself as 'instructions' and 'input'",
}
# OpenAI's own fields; those that engines added are not checked here.
_SAME_NAME = ("temperature", "top_p", "parallel_tool_calls", "metadata", "user")
_CHECKED = [(name, OPTIONS[name].type.json_type, OPTIONS[name].idle) for name in _SAME_NAME]
_STRINGS = ("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "truncation")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED_ANYWAY = {
    "reasoning.encrypted_content",  # an engine's signature, where it gives one
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
}
_WITHOUT_EFFECT = {"service_tier": ("auto", "default"), "truncation": ("disabled",)}
_TOOL_FIELDS = {"type", "name", "description", "parameters", "strict"}
_READ_ELSEWHERE = {
    *_SAME_NAME,
    *("model", "input", "instructions", "tools", "tool_choice", "stream", "stream_options", "max_output_tokens"),
    *("text", "reasoning", "include", "top_logprobs", "store", "background", "stop", "context_management"),
}


def read_request(body: bytes) -> Generation:
    """What a client asks of `/v1/responses`."""
    fields = read_fields(body)
    for name, instead in _KEPT_NOWHERE.items():
        if fields.get(name) is not None:
            raise bad_request(f"'{name}' cannot be had: this gateway keeps no responses; {instead}")
    if optional(fields, "background", bool):
        raise bad_request("'background' cannot be true: this gateway keeps no responses; wait for it, or stream it")
    optional(fields, "store", bool)
    model = required(fields, "model", str)
    instructions = optional(fields, "instructions", str)
    messages = [Message("system", (Text(instructions),))] if instructions else []
    if fields.get("input") is None:
        raise bad_request("'input' is missing; it must be a string or a list of items")
    messages += read_input(fields["input"])
    if not messages:
        raise bad_request("'input' must hold at least one item")
    tools = tuple(_tool(tool, where) for where, tool in objects(fields.get("tools") or [], "tools"))
    stream = bool(optional(fields, "stream", bool))
    return Generation(model, None, tuple(messages), tools, _options(fields), stream, include_usage=stream)


def _options(fields: Fields) -> dict[str, Any]:
    """The options among these fields by their canonical names, what is not known by its own."""
    read = {name: optional(fields, name, kind) for name, kind, _ in _CHECKED}
    options = {name: read[name] for name, _, idle in _CHECKED if read[name] is not None and read[name] not in idle}
    if optional(fields, "max_output_tokens", int) is not None:
        options["max_tokens"] = fields["max_output_tokens"]
    for name in _STRINGS:
        optional(fields, name, str)
    if fields.get("stop"):  # vLLM's
        options["stop"] = [fields["stop"]] if isinstance(fields["stop"], str) else texts(fields["stop"], "stop")
    options |= _text(optional(fields, "text", dict) or {})
    options |= _reasoning_options(optional(fields, "reasoning", dict) or {})
    options |= _logprobs(fields)
    choice = fields.get("tool_choice")
    if choice is not None and (fields.get("tools") or choice not in ("auto", "none")):
        options["tool_choice"] = _tool_choice(choice)
    return with_others(options, fields, _READ_ELSEWHERE, _WITHOUT_EFFECT)


def _text(text: Fields) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in text.items():
        if value is None or (name, value) == ("verbosity", "medium"):
            continue
        if name == "format":
            form = _response_format(checked(value, dict, "text.format"))
            options |= {"response_format": form} if form else {}
        else:
            options["verbosity" if name == "verbosity" else f"text.{name}"] = value
    return options


def _response_format(form: Fields) -> Fields | None:
    """Chat's `response_format` of `text.format`; None for text, the default."""
    match form.get("type"):
        case "text":
            return None
        case "json_schema":
            schema = {name: value for name, value in form.items() if name != "type" and value is not None}
            return {"type": "json_schema", "json_schema": schema}
    return dict(form)


def _reasoning_options(reasoning: Fields) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in reasoning.items():
        if name == "effort" and value is not None:
            options["reasoning_effort"] = checked(value, str, "reasoning.effort")
        elif value is not None and name not in ("summary", "generate_summary"):
            options[f"reasoning.{name}"] = value
    return options


def _logprobs(fields: Fields) -> dict[str, Any]:
    include = texts(fields.get("include") or [], "include")
    for name in include:
        if name not in _INCLUDED_ANYWAY and name != _LOGPROBS:
            raise bad_request(f"'include': '{name}' cannot be included")
    top = optional(fields, "top_logprobs", int) or 0
    return {"logprobs": top} if top or _LOGPROBS in include else {}


def _tool_choice(choice: Any) -> Any:
    """Chat's form of it."""
    if choice in ("auto", "none", "required"):
        return choice
    if not isinstance(choice, dict) or choice.get("type") != "function":
        parsed = choice.get("type") if isinstance(choice, dict) else choice
        raise bad_request(f"'tool_choice' must be auto, none, required or a function, not '{parsed}'")
    return {"type": "function", "function": {"name": required(choice, "name", str, "tool_choice")}}


def _tool(tool: Fields, where: str) -> Tool:
    kind = required(tool, "type", str, where)
    if kind != "function":
        raise bad_request(f"'{where}' is of type '{kind}', which engines here do not run; they take functions alone")
    return read_tool(tool, where, _TOOL_FIELDS, optional(tool, "parameters", dict, where) or {})


ENGINE = "an OpenAI responses engine"

_AS_THEY_ARE = [field.name for field in SAMPLING_FIELDS if LlmApi.RESPONSES in field.apis]
_AS_THEY_ARE += [
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "truncation",
    "max_tool_calls",
]
_KNOWN = {
    *_AS_THEY_ARE,
    *("max_tokens", "tool_choice", "response_format", "verbosity", "reasoning_effort", "logprobs"),
}


def write_request(generation: Generation, *, model: str, drop: bool) -> tuple[bytes, list[str]]:
    """The body for `/v1/responses`, and the names of the dropped options. Nothing is to be stored."""
    requested, approximated = written_thinking(dict(generation.options), drop)
    if distinguishes_by_name(generation.messages):
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
            output = _written_content(message)
            items.append({"type": "function_call_output", "call_id": message.tool_call_id, "output": output})
        elif message.role == "assistant":
            _assistant(message, items)
        else:
            items.append({"type": "message", "role": message.role, "content": _written_content(message)})
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


def _written_content(message: Message) -> str | list[Fields]:
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
