"""Requests of OpenAI's chat completions, read as clients write them (OpenAI's own, LangChain, by hand), and written for
engines.

Read: functions of before there were tools become tools, with calls that have made-up ids; several texts in one message
stay several; a field without a canonical name stays an option by its own name, so that it is never dropped in silence.
Written: `developer` becomes `system`, which every engine's template knows; the bound is `max_tokens`, since some
engines do not know `max_completion_tokens`.

Raises: GatewayError(BAD_REQUEST) that names the malformed field; GatewayError(UNSUPPORTED) for a part, a tool or media
that the other side has no form for.
Sources: OpenAI API reference, "Create chat completion"; vLLM's `audio_url`, `reasoning` and `thinking` parts; vLLM's
and SGLang's extra parameters.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.canonical import (
    Generation,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    data_url,
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
)
from gateway.protocol.llm.openai_options import (
    EXTRAS,
    read_options,
    read_stream,
    read_tool_choice,
    read_tools,
    written_thinking,
    written_tool,
)
from gateway.protocol.llm.sampling_fields import accepted_by, fields_of
from gateway.protocol.operations import LlmApi

# OpenAI's names of sounds that have another as media types.
_FORMATS = {"mpeg": "mp3", "wave": "wav"}
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def read_parts(content: Any, where: str) -> list[Part]:
    """The parts of a message's `content`: a string, a list, or nothing."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [Text(content)]
    parts: list[Part] = []
    for at, part in enumerate(checked(content, list, where)):
        path = f"{where}[{at}]"
        parts.append(Text(part) if isinstance(part, str) else _part(checked(part, dict, path), path))
    return parts


def _part(part: Fields, where: str) -> Part:
    kind = required(part, "type", str, where)
    if kind in _TEXTS:
        return Text(required(part, _TEXTS[kind], str, where))
    if kind == "thinking":
        return Reasoning(required(part, "thinking", str, where))
    if kind in ("image_url", "audio_url"):
        content = part.get(kind)
        if isinstance(content, str):  # LangChain's of old
            content = {"url": content}
        content = checked(content, dict, f"{where}.{kind}")
        rest = {name: value for name, value in content.items() if name != "url" and value is not None}
        return Media(kind.removesuffix("_url"), required(content, "url", str, f"{where}.{kind}"), rest)
    if kind == "input_audio":
        content = required(part, kind, dict, where)
        data, form = (required(content, name, str, f"{where}.{kind}") for name in ("data", "format"))
        return Media("audio", data if data.startswith("data:") else data_url(f"audio/{form}", data), {"format": form})
    if kind == "file":
        content = required(part, kind, dict, where)
        rest = {name: value for name, value in content.items() if name != "file_data" and value is not None}
        return Media(kind, optional(content, "file_data", str, f"{where}.{kind}") or "", rest)
    raise unsupported(f"'{where}.type' is '{kind}'; only texts, images, sounds and files can be told to another engine")


def read_call(call: Fields, where: str) -> ToolCall:
    """A call in an assistant's message. Its arguments are JSON in a string or, as some clients have it, the object."""
    if call.get("type", "function") != "function":
        raise unsupported(f"'{where}.type' is '{call['type']}'; only calls of functions can be told to another engine")
    function = required(call, "function", dict, where)
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = orjson.dumps(arguments).decode()
    return ToolCall(
        optional(call, "id", str, where) or "",
        required(function, "name", str, f"{where}.function"),
        checked(arguments or "", str, f"{where}.function.arguments"),
    )


def written_call(call: ToolCall) -> Fields:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def written_content(parts: tuple[Part, ...]) -> str | list[Fields]:
    """The `content` of these parts but reasoning, which has a field of its own; a string where it is one text."""
    fields = [part for part in parts if not isinstance(part, Reasoning)]
    if not fields:
        return ""
    if len(fields) == 1 and isinstance(fields[0], Text):
        return fields[0].text
    return [{"type": "text", "text": part.text} if isinstance(part, Text) else _media(part) for part in fields]


def _media(media: Media) -> Fields:
    if media.kind == "image":
        return {"type": "image_url", "image_url": {"url": media.url, **media.detail}}
    if media.kind == "audio":
        inline = split_data_url(media.url)
        if inline is None:
            return {"type": "audio_url", "audio_url": {"url": media.url}}
        subtype = inline[0].partition("/")[2].removeprefix("x-")
        form = media.detail.get("format") or _FORMATS.get(subtype, subtype)
        return {"type": "input_audio", "input_audio": {"data": inline[1], "format": form}}
    if media.kind == "file" and (not media.url or media.url.startswith("data:")):
        return {"type": "file", "file": ({"file_data": media.url} if media.url else {}) | dict(media.detail)}
    what = f"a {media.kind} by its address cannot be told to an OpenAI chat engine; put it into the request (base64)"
    raise unsupported(what)


_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_request(body: bytes) -> Generation:
    """What a client asks of `/v1/chat/completions`."""
    fields = read_fields(body)
    model = required(fields, "model", str)
    messages = read_messages(fields.pop("messages", None))
    tools, choice = read_tools(fields), read_tool_choice(fields)
    stream, include_usage, more = read_stream(fields)
    logprobs = _logprobs(fields)
    del fields["model"]
    options = read_options(fields) | logprobs | more
    if tools or choice.get("tool_choice") not in (None, "auto", "none"):
        options |= choice
    return Generation(model, None, messages, tools, options, stream, include_usage)


def _logprobs(fields: Fields) -> dict[str, Any]:
    """Whether they are asked, and how many alternatives; these fields are taken out of `fields`."""
    requested, top = optional(fields, "logprobs", bool), optional(fields, "top_logprobs", int)
    fields.pop("logprobs", None)
    fields.pop("top_logprobs", None)
    if top and not requested:
        raise bad_request("'top_logprobs' needs 'logprobs': true")
    return {"logprobs": top or 0} if requested else {}


def read_messages(value: Any) -> tuple[Message, ...]:
    """The messages of a body."""
    if not value:
        raise bad_request("'messages' is missing; it must be a list of at least one message")
    messages: list[Message] = []
    called: dict[str, str] = {}  # function -> made-up id of its last call
    for where, message in objects(value, "messages"):
        role = required(message, "role", str, where)
        if role == "function":
            name = required(message, "name", str, where)
            parts = tuple(read_parts(message.get("content"), f"{where}.content"))
            messages.append(Message("tool", parts, (), called.get(name, f"call_{name}"), name))
        elif role in _ROLES:
            messages.append(_message(role, message, where, called))
        else:
            raise bad_request(f"'{where}.role' must be one of {', '.join(_ROLES)}, not '{role}'")
    return tuple(messages)


def _message(role: str, message: Fields, where: str, called: dict[str, str]) -> Message:
    parts = read_parts(message.get("content"), f"{where}.content")
    calls: list[ToolCall] = []
    if role == "assistant":
        for name in ("reasoning_content", "reasoning"):
            if reasoning := optional(message, name, str, where):
                parts.insert(0, Reasoning(reasoning))
                break
        parts += read_parts(optional(message, "refusal", str, where), f"{where}.refusal")
        calls = [read_call(call, at) for at, call in objects(message.get("tool_calls") or [], f"{where}.tool_calls")]
        if (before := optional(message, "function_call", dict, where)) is not None:
            id = f"call_{where.removeprefix('messages[').removesuffix(']')}"
            call = read_call({"id": id, "function": before}, f"{where}.function_call")
            called[call.name] = id
            calls.append(call)
        if optional(message, "audio", dict, where) is not None and not parts:
            raise bad_request(f"'{where}.audio' is known to one engine alone; give its text as 'content'")
    answers = required(message, "tool_call_id", str, where) if role == "tool" else ""
    return Message(role, tuple(parts), tuple(calls), answers, optional(message, "name", str, where) or "")


ENGINE = "an OpenAI chat engine"
_OF_CHAT_ALONE = {
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message", "documents", "mm_processor_kwargs"),
    *("include_reasoning", "separate_reasoning", "stream_reasoning"),
    *("verbosity", "service_tier", "store", "prediction"),
    *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
}
_KNOWN = fields_of(LlmApi.CHAT) | EXTRAS | _OF_CHAT_ALONE


def write_request(generation: Generation, *, model: str, drop: bool) -> tuple[bytes, list[str]]:
    """The body for `/v1/chat/completions`, and the names of the dropped options. A prompt becomes a user's message. A
    stream always asks for usage: the writer decides whether the client reads it."""
    fields, approximated = written_thinking(dict(generation.options), drop)
    options, lost = accepted_by(fields, _KNOWN, engine=ENGINE, drop=drop)
    body: Fields = {"model": model, "messages": written_messages(generation)}
    if generation.tools:
        body["tools"] = [written_tool(tool) for tool in generation.tools]
    if (top := options.pop("logprobs", None)) is not None:
        body["logprobs"] = True
        if top:
            body["top_logprobs"] = top
    body |= options
    if generation.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return dumped(body), approximated + lost


def written_messages(generation: Generation) -> list[Fields]:
    """The messages of a body; a prompt is one of the user's."""
    if generation.messages:
        return [written_message(message) for message in generation.messages]
    if isinstance(generation.prompt, str):
        return [{"role": "user", "content": generation.prompt}]
    raise unsupported(f"a prompt of token ids cannot be told to {ENGINE}; give its text")


def written_message(message: Message) -> Fields:
    """One message of a body."""
    role = "system" if message.role == "developer" else message.role
    content: Any = written_content(message.parts)
    fields: Fields = {"role": role, "content": content}
    if message.tool_calls:
        fields["content"] = content or None
        fields["tool_calls"] = [written_call(call) for call in message.tool_calls]
    reasoning = "".join([part.text for part in message.parts if isinstance(part, Reasoning)])
    if reasoning:
        fields["reasoning_content"] = reasoning
    if message.name:
        fields["name"] = message.name
    if role == "tool":
        fields["tool_call_id"] = message.tool_call_id
    return fields
