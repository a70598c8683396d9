"""What rules may ask of a request to a language model: its scalar fields, and whether it shows an image."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.body_facts import NO_BODY, BodyFacts

# A key or a type of a part that holds an image: OpenAI's chat and responses, Anthropic's messages.
_IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})


def read_generation_facts(body: bytes) -> BodyFacts:
    """The facts of an OpenAI or Anthropic body; NO_BODY where it cannot be read: whoever gets it will say why."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return NO_BODY
    if not isinstance(message, dict):
        return NO_BODY
    scalars = {key: value for key, value in message.items() if isinstance(value, str | int | float)}
    metadata = message.get("metadata")
    if isinstance(metadata, dict):
        scalars = {key: value for key, value in metadata.items() if isinstance(value, str | int | float)} | scalars
    conversation = message.get("conversation")
    if isinstance(conversation, dict) and isinstance(conversation.get("id"), str):  # OpenAI's Responses
        scalars = {"conversation": conversation["id"]} | scalars
    turns = message.get("messages", message.get("input"))
    return BodyFacts(scalars, has_image=_shows_an_image(turns))


def _shows_an_image(turns: Any) -> bool:
    """Whether some part of some turn is an image; also one that a tool gave back."""
    left = [turns]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left += item
        elif isinstance(item, dict):
            if item.get("type") in _IMAGE_TYPES:
                return True
            left.append(item.get("content"))
            left.append(item.get("output"))
    return False
