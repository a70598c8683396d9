"""The names of shared memory regions at engines: each client's own, which no other can guess.

An engine has one name space for all clients. So the gateway appends a code to each name, which depends on the client
and on a secret: whoever names another client's region names one that does not exist.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from hmac import new as hmac

from gateway.protocol import protobuf
from gateway.protocol.json_bounds import BOUNDS, JsonBounds

_PARAMETER = "shared_memory_region"
_WORD = _PARAMETER.encode()
_KEY = b'"%b"' % _WORD
# Possessive: what repeats is never tried again, and needs no memory.
_IN_JSON = re.compile(rb'(%b\s*+:\s*+)("(?:[^"\\]++|\\.)*+")' % _KEY)
_MAX_NAME_BYTES = 1024
_CODE_DIGITS = 32


def names_region(request: bytes) -> bool:
    """Whether a request, of any protocol, may name a region."""
    return _WORD in request


class RegionNames:
    """The names under one secret. An `owner` is what identifies a client."""

    def __init__(self, secret: bytes, bounds: JsonBounds = BOUNDS) -> None:
        self._secret = secret
        self._bounds = bounds

    def code(self, owner: str, name: str) -> str:
        """What stands behind the name at engines."""
        text = json.dumps([owner, name]).encode()
        return "." + hmac(self._secret, text, sha256).hexdigest()[:_CODE_DIGITS]

    def of_client(self, owner: str, name_at_engine: str) -> str | None:
        """The client's name; None of another client's region."""
        name = name_at_engine[: -_CODE_DIGITS - 1]
        return name if name and name_at_engine == name + self.code(owner, name) else None

    def rename_in_json(self, owner: str, text: bytes) -> bytes:
        """A REST inference's JSON with the names at engines. What is written in an unusual way, or is longer than
        1 KiB, stays as it is, and names no region. Raises: GatewayError(BODY_TOO_LARGE) where it names too many."""
        if _WORD not in text:
            return text
        self._bounds.check_count(text.count(_KEY))
        return _IN_JSON.sub(lambda found: found[1] + self._renamed_literal(owner, found[2]), text)

    def rename_in_message(self, owner: str, message: bytes) -> bytes:
        """A ModelInferRequest with the names at engines. Raises: ValueError where it is malformed;
        GatewayError(BODY_TOO_LARGE) where it has too many tensors."""
        if _WORD not in message:
            return message
        request = protobuf.parse("inference.ModelInferRequest", message)
        self._bounds.check_count(len(request.inputs) + len(request.outputs))
        for tensor in (*request.inputs, *request.outputs):
            if _PARAMETER in tensor.parameters:
                parameter = tensor.parameters[_PARAMETER]
                parameter.string_param += self.code(owner, parameter.string_param)
        return bytes(request.SerializeToString())

    def _renamed_literal(self, owner: str, literal: bytes) -> bytes:
        if len(literal) > _MAX_NAME_BYTES:
            return literal
        try:
            name = json.loads(literal)
        except ValueError:
            return literal
        return literal[:-1] + self.code(owner, name).encode() + b'"'
