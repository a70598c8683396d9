"""What the messages of OpenAI's chat completions hold: texts, images, sounds, files, thoughts and calls.

Sources: OpenAI API reference, "Create chat completion"; vLLM's `audio_url`, `reasoning` and `thinking` parts.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Media, Part, Reasoning, Text, ToolCall
from gateway.protocol.llm.data_urls import data_url, split_data_url
from gateway.protocol.llm.request_fields import Fields, checked, optional, required

__all__ = ["read_call", "read_parts", "written_call", "written_content"]

# OpenAI's names of sounds that have another as media types.
_FORMATS = {"mpeg": "mp3", "wave": "wav"}
_TEXTS = ("text", "input_text", "output_text")


def read_parts(content: Any, where: str) -> list[Part]:
    """The parts of a message's `content`: a string, a list, or nothing.

    Raises: GatewayError(BAD_REQUEST) that names the part; GatewayError(UNSUPPORTED) for a kind of one engine alone.
    """
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
        return Text(required(part, "text", str, where))
    if kind == "refusal":
        return Text(required(part, "refusal", str, where))
    if kind == "thinking":
        return Reasoning(required(part, "thinking", str, where))
    if kind in ("image_url", "audio_url"):
        given = part.get(kind)
        if isinstance(given, str):  # LangChain's of old
            given = {"url": given}
        given = checked(given, dict, f"{where}.{kind}")
        rest = {name: value for name, value in given.items() if name != "url" and value is not None}
        return Media(kind.removesuffix("_url"), required(given, "url", str, f"{where}.{kind}"), rest)
    if kind == "input_audio":
        given = required(part, kind, dict, where)
        data, form = (required(given, name, str, f"{where}.{kind}") for name in ("data", "format"))
        return Media("audio", data if data.startswith("data:") else data_url(f"audio/{form}", data), {"format": form})
    if kind == "file":
        given = required(part, kind, dict, where)
        rest = {name: value for name, value in given.items() if name != "file_data" and value is not None}
        return Media(kind, optional(given, "file_data", str, f"{where}.{kind}") or "", rest)
    what = f"'{where}.type' is '{kind}'; only texts, images, sounds and files can be told to another engine"
    raise GatewayError(ErrorKind.UNSUPPORTED, what)


def read_call(call: Fields, where: str) -> ToolCall:
    """A call in an assistant's message. Its arguments are JSON in a string, or as some clients have it, the object.

    Raises: GatewayError(BAD_REQUEST) that names the field.
    """
    if call.get("type", "function") != "function":
        what = f"'{where}.type' is '{call['type']}'; only calls of functions can be told to another engine"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
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
    """The `content` of these parts but thoughts, which have a field of their own; a string where it is one text.

    Raises: GatewayError(UNSUPPORTED) for media of which there is no form.
    """
    told = [part for part in parts if not isinstance(part, Reasoning)]
    if not told:
        return ""
    if len(told) == 1 and isinstance(told[0], Text):
        return told[0].text
    return [{"type": "text", "text": part.text} if isinstance(part, Text) else _media(part) for part in told]


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
    raise GatewayError(ErrorKind.UNSUPPORTED, what)
