"""What `balance: prefix` goes by: the bytes of a request from where its prompt begins, as they stand on the wire.

Requests whose conversations begin alike have the same bytes there, however they are framed or named before; nobody
parses them, and what stands behind the prompt only matters once that is the same.
"""

from __future__ import annotations

from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf_wire import BYTES, fields

# What holds a prompt, in all dialects; the system prompt of Anthropic's stands beside the messages.
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
