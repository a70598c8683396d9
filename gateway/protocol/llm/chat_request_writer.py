"""Requests of OpenAI's chat completions, written for an engine that takes them.

`developer` becomes `system`, which every engine's template knows. A bound is told as `max_tokens`: of the engines here
some do not know `max_completion_tokens`.

Source: OpenAI API reference, "Create chat completion"; vLLM's and SGLang's extra parameters.
"""

from __future__ import annotations

from typing import Any

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation, Message, Reasoning
from gateway.protocol.llm.chat_parts import written_call, written_content
from gateway.protocol.llm.openai_options import EXTRAS, written_thinking, written_tool
from gateway.protocol.llm.request_fields import Fields, dumped
from gateway.protocol.llm.sampling_fields import accepted_by, fields_of
from gateway.protocol.operations import LlmApi

__all__ = ["ENGINE", "write_request", "written_message", "written_messages"]

ENGINE = "an OpenAI chat engine"
_OF_CHAT_ALONE = {
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message", "documents", "mm_processor_kwargs"),
    *("include_reasoning", "separate_reasoning", "stream_reasoning"),
    *("verbosity", "service_tier", "store", "prompt_cache_key", "safety_identifier", "prediction"),
}
_KNOWN = fields_of(LlmApi.CHAT) | EXTRAS | _OF_CHAT_ALONE


def write_request(generation: Generation, *, model: str, drop: bool) -> tuple[bytes, list[str]]:
    """The body for `/v1/chat/completions`, and the names of the options that were dropped. A prompt becomes one message
    of the user's. Of a stream, usage is asked always: whether the client reads it is the writer's.

    Raises: GatewayError(UNSUPPORTED) that names what the engine has no place for.
    """
    told, approximated = written_thinking(dict(generation.options), drop)
    options, lost = accepted_by(told, _KNOWN, engine=ENGINE, drop=drop)
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
    """What is said, as the messages of a body; a prompt as one of the user's.

    Raises: GatewayError(UNSUPPORTED) for token ids, and for media of which there is no form.
    """
    if generation.messages:
        return [written_message(message) for message in generation.messages]
    if isinstance(generation.prompt, str):
        return [{"role": "user", "content": generation.prompt}]
    what = f"a prompt of token ids cannot be told to {ENGINE}; give its text"
    raise GatewayError(ErrorKind.UNSUPPORTED, what)


def written_message(message: Message) -> Fields:
    """One message of a body.

    Raises: GatewayError(UNSUPPORTED) for media of which there is no form.
    """
    role = "system" if message.role == "developer" else message.role
    content: Any = written_content(message.parts)
    told: Fields = {"role": role, "content": content}
    if message.tool_calls:
        told["content"] = content or None
        told["tool_calls"] = [written_call(call) for call in message.tool_calls]
    thought = "".join([part.text for part in message.parts if isinstance(part, Reasoning)])
    if thought:
        told["reasoning_content"] = thought
    if message.name:
        told["name"] = message.name
    if role == "tool":
        told["tool_call_id"] = message.tool_call_id
    return told
