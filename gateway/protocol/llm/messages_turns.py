"""The turns of a request for an engine of Anthropic's messages: text, media, thoughts, calls and their results."""

from __future__ import annotations

import base64
from typing import Any

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.llm.canonical import Generation, Media, Message, Part, Reasoning, Text, ToolCall, split_data_url
from gateway.protocol.llm.json_fields import bad_request

ENGINE = "an Anthropic messages engine"
# What a tool's result begins with where it tells of a failure (`is_error`), for which other APIs have no field.
FAILED_RESULT = Text("Error: ")
# Thinking that only Anthropic can read stands in a signature, behind this.
REDACTED = "redacted_thinking:"
SYSTEM_ROLES = ("system", "developer")


def written_turns(generation: Generation) -> list[dict[str, Any]]:
    """The messages, turn and turn about: results of tools are the user's."""
    if isinstance(generation.prompt, str):
        return [{"role": "user", "content": generation.prompt}]
    if generation.prompt is not None:
        raise unsupported(f"a prompt of token ids cannot be told to {ENGINE}; send text")
    turns: list[dict[str, Any]] = []
    for message in generation.messages:
        if message.role in SYSTEM_ROLES:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        match turn["content"]:
            case []:
                turn["content"] = ""
            case [{"type": "text", "text": text}]:
                turn["content"] = text
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    has_failed = message.role == "tool" and message.parts[:1] == (FAILED_RESULT,)
    parts = message.parts[has_failed:]
    blocks = [written_block(part) for part in parts if not isinstance(part, Text) or part.text]
    if message.role != "tool":
        return blocks + [_tool_use(call) for call in message.tool_calls]
    content = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks or ""
    result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
    return [result | ({"is_error": True} if has_failed else {})]


def json_object(text: str) -> orjson.Fragment | None:
    """The text as it is, where it is a JSON object."""
    try:
        return orjson.Fragment(text) if isinstance(orjson.loads(text), dict) else None
    except orjson.JSONDecodeError:
        return None


def _tool_use(call: ToolCall) -> dict[str, Any]:
    arguments = json_object(call.arguments or "{}")
    if arguments is None:
        raise bad_request(f"the arguments of the call '{call.id}' of '{call.name}' must be a JSON object, as text")
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def written_block(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Reasoning):
        if part.signature.startswith(REDACTED):
            return {"type": "redacted_thinking", "data": part.signature.removeprefix(REDACTED)}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if part.kind == "image":
        return {"type": "image", "source": _source(part)}
    if part.kind == "file":
        title = part.detail.get("filename")
        return {"type": "document", "source": _source(part)} | ({"title": title} if title else {})
    raise unsupported(f"{part.kind} cannot be told to {ENGINE}")


def _source(media: Media) -> dict[str, Any]:
    inside = split_data_url(media.url)
    if inside is None:
        if not media.url.startswith(("http://", "https://")):
            raise bad_request(f"'{media.url[:40]}' is neither an http address nor a 'data:' URL in base64")
        return {"type": "url", "url": media.url}
    media_type, data = inside
    if media_type == "text/plain":
        try:
            text = base64.b64decode(data, validate=True).decode()
        except ValueError as error:
            raise bad_request("a file of text must be UTF-8, in base64") from error
        return {"type": "text", "media_type": media_type, "data": text}
    return {"type": "base64", "media_type": media_type, "data": data}
