"""Requests of OpenAI's chat completions, read as clients of them write: OpenAI's own, LangChain, and by hand.

Functions of before there were tools become tools, with calls that have made-up ids. Several texts in one message stay
several. What has no canonical name stays an option by its own, so that no engine is not told of it without a word.

Source: OpenAI API reference, "Create chat completion".
"""

from __future__ import annotations

from typing import Any

from gateway.protocol.llm.canonical import Generation, Message, Reasoning, ToolCall
from gateway.protocol.llm.chat_parts import read_call, read_parts
from gateway.protocol.llm.openai_options import read_options, read_stream, read_tool_choice, read_tools
from gateway.protocol.llm.request_fields import Fields, bad_request, objects, optional, read_fields, required

__all__ = ["read_messages", "read_request"]

_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_request(body: bytes) -> Generation:
    """What a client asks of `/v1/chat/completions`.

    Raises: GatewayError(BAD_REQUEST) that names the field; GatewayError(UNSUPPORTED) where a part, a tool or a choice
    of tools is of a kind that only one engine has.
    """
    given = read_fields(body)
    model = required(given, "model", str)
    messages = read_messages(given.pop("messages", None))
    tools, choice = read_tools(given), read_tool_choice(given)
    stream, include_usage, more = read_stream(given)
    logprobs = _logprobs(given)
    del given["model"]
    options = read_options(given) | logprobs | more
    if tools or choice.get("tool_choice") not in (None, "auto", "none"):
        options |= choice
    return Generation(model, None, messages, tools, options, stream, include_usage)


def _logprobs(given: Fields) -> dict[str, Any]:
    """Whether they are asked, and how many alternatives; these fields are taken out of `given`."""
    asked, top = optional(given, "logprobs", bool), optional(given, "top_logprobs", int)
    given.pop("logprobs", None)
    given.pop("top_logprobs", None)
    if top and not asked:
        raise bad_request("'top_logprobs' needs 'logprobs': true")
    return {"logprobs": top or 0} if asked else {}


def read_messages(given: Any) -> tuple[Message, ...]:
    """The messages of a body.

    Raises: GatewayError as `read_request` does.
    """
    if not given:
        raise bad_request("'messages' is missing; it must be a list of at least one message")
    messages: list[Message] = []
    called: dict[str, str] = {}  # function -> made-up id of its last call
    for where, message in objects(given, "messages"):
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
            if thought := optional(message, name, str, where):
                parts.insert(0, Reasoning(thought))
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
