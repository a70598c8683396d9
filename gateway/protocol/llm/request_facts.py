"""Facts of a request to a language model: the scalar fields and images that rules match, and the bytes by which
`balance: prefix` compares prompts.

Requests whose conversations begin alike have the same bytes there, however they are framed or named before. They are
not parsed, and what follows the prompt only matters once the prompts are equal.
"""

from __future__ import annotations

from typing import Any

from gateway.protocol.errors import GatewayError, bad_request
from gateway.protocol.json_bounds import BOUNDS, JsonBounds
from gateway.protocol.protobuf_wire import BYTES, fields
from gateway.protocol.v2_facts import BodyFacts

# A key or a type of a part that holds an image: OpenAI's chat and responses, Anthropic's messages.
_IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})


def read_generation_facts(body: bytes, bounds: JsonBounds = BOUNDS) -> BodyFacts:
    """The facts of an OpenAI or Anthropic body, or why it cannot be read.

    Raises: GatewayError(BODY_TOO_LARGE) where it is more than `bounds` allow.
    """
    try:
        message = bounds.read(body)
    except ValueError as error:
        return BodyFacts(error=bad_request(f"failed to parse the request JSON: {error}"))
    if not isinstance(message, dict):
        return BodyFacts(error=bad_request("the request JSON must be an object"))
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


# What holds a prompt, in all APIs; the system prompt of Anthropic's stands beside the messages.
_KEYS = (b'"system"', b'"messages"', b'"prompt"', b'"input"', b'"text_input"', b'"inputs"')
_RAW_CONTENTS = 7  # of a ModelInferRequest
_INPUTS = 5
_MIN_RAW_BYTES = 16  # numbers and flags are shorter than any prompt worth of a place


def prompt_of_json(body: bytes) -> memoryview:
    """The bytes of a JSON body from the first key on that may hold a prompt."""
    found = [at for at in map(body.find, _KEYS) if at >= 0]
    return memoryview(body)[min(found, default=0) :]


def prompt_of_message(message: bytes) -> bytes:
    """The first long raw tensor of a ModelInferRequest, or, where its tensors are typed, the first input; nothing of
    what is no such message: its engine will say so."""
    first = b""
    try:
        for number, kind, value in fields(message):
            if kind != BYTES or not isinstance(value, bytes):
                continue
            if number == _RAW_CONTENTS and len(value) >= _MIN_RAW_BYTES:
                return value
            if number == _INPUTS and not first:
                first = value
    except GatewayError:
        return b""
    return first
