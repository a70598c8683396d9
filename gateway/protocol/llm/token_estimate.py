"""Estimates of tokens, for engines that count none."""

from __future__ import annotations

import math

from gateway.protocol.llm.canonical import Generation, Media, Message, Text, TokenUsage
from gateway.protocol.llm.json_fields import dumped
from gateway.protocol.llm.openai_options import written_tool

# English text in common vocabularies. Markup and code have fewer bytes per token, which the JSON around them offsets.
BYTES_PER_TOKEN = 4
# An image's tokens depend on its size and the model: 256 to 2,000 with vLLM.
_TOKENS_OF_MEDIA = 1000


def tokens_of_bytes(num_bytes: int) -> int:
    return math.ceil(num_bytes / BYTES_PER_TOKEN)


def estimated_tokens(message: Message) -> int:
    """An estimate of a message's tokens, at 4 bytes each."""
    size = sum(len(part.text.encode()) for part in message.parts if isinstance(part, Text))
    size += sum(len(call.name) + len(call.arguments.encode()) for call in message.tool_calls)
    num_media = sum(isinstance(part, Media) for part in message.parts)
    return tokens_of_bytes(size) + num_media * _TOKENS_OF_MEDIA


def estimated_prompt_tokens(generation: Generation) -> int:
    """An estimate of the tokens of a prompt, or of messages and tools."""
    prompt = generation.prompt
    if isinstance(prompt, str):
        return tokens_of_bytes(len(prompt.encode("utf-8", "replace")))
    if prompt is not None:
        return len(prompt)
    tools = sum(len(dumped(written_tool(tool))) for tool in generation.tools)
    return sum(map(estimated_tokens, generation.messages)) + tokens_of_bytes(tools)


def estimated_usage(generation: Generation, num_deltas: int, num_bytes: int) -> TokenUsage:
    """An estimate of what a reply used: a token for each delta where it came in several, else for each 4 bytes; never
    more than the request's bound."""
    num_choices = generation.options.get("n", 1)
    completion = num_deltas if num_deltas > num_choices else tokens_of_bytes(num_bytes)
    bound = generation.options.get("max_tokens")
    if isinstance(bound, int):
        completion = min(completion, bound * num_choices)
    return TokenUsage(estimated_prompt_tokens(generation), completion, is_estimated=True)
