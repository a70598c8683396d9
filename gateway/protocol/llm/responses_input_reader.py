"""The `input` of OpenAI's responses, read: items become messages.

What the model thought, said and called in one turn are items of their own there; here they are one message again.

Source: OpenAI API reference, "Create a model response", `input`.
"""

from __future__ import annotations

from typing import Any

from gateway.protocol.llm.canonical import Media, Message, Part, Reasoning, Text, ToolCall
from gateway.protocol.llm.data_urls import data_url
from gateway.protocol.llm.request_fields import Fields, bad_request, objects, optional, required

_ROLES = ("user", "assistant", "system", "developer")


def read_input(given: Any) -> list[Message]:
    """The messages of a text, which is the user's, or of items.

    Raises: GatewayError(BAD_REQUEST) that names the item and its field.
    """
    if isinstance(given, str):
        return [Message("user", (Text(given),))]
    if not isinstance(given, list):
        raise bad_request("'input' must be a string or a list of items")
    messages: list[Message] = []
    for where, item in objects(given, "input"):
        kind = item.get("type") or "message"
        if kind == "message":
            _message(item, where, messages)
        elif kind == "reasoning":
            _append(Message("assistant", (_reasoning(item, where),)), messages)
        elif kind == "function_call":
            _call(item, where, messages)
        elif kind == "function_call_output":
            messages.append(Message("tool", _output(item, where), (), required(item, "call_id", str, where)))
        elif kind == "item_reference":
            raise bad_request(f"'{where}' is a reference: this gateway keeps no responses; send the item itself")
        else:
            raise bad_request(f"'{where}' is a '{kind}' item, which engines here cannot be given")
    return messages


def _message(item: Fields, where: str, messages: list[Message]) -> None:
    role = required(item, "role", str, where)
    if role not in _ROLES:
        raise bad_request(f"'{where}.role' must be one of {', '.join(_ROLES)}, not '{role}'")
    _append(Message(role, _parts(item.get("content"), f"{where}.content")), messages)


def _append(message: Message, messages: list[Message]) -> None:
    """Appends a message; the assistant's joins the one before where that is the same turn and has said nothing yet."""
    before = messages[-1] if messages else message
    has_said = any(isinstance(part, Text) for part in before.parts)
    if messages and message.role == before.role == "assistant" and (message.tool_calls or not has_said):
        parts, calls = before.parts + message.parts, before.tool_calls + message.tool_calls
        messages[-1] = Message("assistant", parts, calls)
    else:
        messages.append(message)


def _call(item: Fields, where: str, messages: list[Message]) -> None:
    call = ToolCall(*(required(item, name, str, where) for name in ("call_id", "name", "arguments")))
    _append(Message("assistant", (), (call,)), messages)


def _reasoning(item: Fields, where: str) -> Reasoning:
    """What the model thought, in full where the item has it, else in summary."""
    name = "content" if item.get("content") else "summary"
    parts = [required(part, "text", str, path) for path, part in objects(item.get(name) or [], f"{where}.{name}")]
    return Reasoning("\n\n".join(parts), optional(item, "encrypted_content", str, where) or "")


def _output(item: Fields, where: str) -> tuple[Part, ...]:
    return _parts(item.get("output"), f"{where}.output")


def _parts(content: Any, where: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        raise bad_request(f"'{where}' must be a string or a list of parts")
    return tuple(_part(part, path) for path, part in objects(content, where))


def _part(part: Fields, where: str) -> Part:
    match required(part, "type", str, where):
        case "input_text" | "output_text" | "text":
            return Text(required(part, "text", str, where))
        case "refusal":
            return Text(required(part, "refusal", str, where))
        case "input_image":
            _refuse_file_id(part, where)
            detail = optional(part, "detail", str, where)
            told = {} if detail in (None, "auto") else {"detail": detail}
            return Media("image", required(part, "image_url", str, where), told)
        case "input_file":
            return _file(part, where)
        case "input_audio":
            audio = required(part, "input_audio", dict, where)
            form, path = required(audio, "format", str, f"{where}.input_audio"), f"{where}.input_audio"
            return Media("audio", data_url(f"audio/{form}", required(audio, "data", str, path)), {"format": form})
        case kind:
            raise bad_request(f"'{where}' is a part of type '{kind}', which engines here cannot be given")


def _file(part: Fields, where: str) -> Media:
    _refuse_file_id(part, where)
    name = optional(part, "filename", str, where)
    url = optional(part, "file_url", str, where)
    if url is None:
        url = required(part, "file_data", str, where)
        if not url.startswith("data:"):
            url = data_url("application/octet-stream", url)
    return Media("file", url, {"filename": name} if name else {})


def _refuse_file_id(part: Fields, where: str) -> None:
    if part.get("file_id") is not None:
        raise bad_request(f"'{where}.file_id': this gateway keeps no files; send the file itself")
