"""OpenFeature's remote evaluation protocol: reading contexts, writing evaluations and errors.

Source: https://github.com/open-feature/protocol, `service/openapi.yaml`, version 0.3.0; reasons and error codes:
https://openfeature.dev/specification/types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError

# A context has attributes of a user, not data.
MAX_BYTES = 64 * 1024

TARGETING_KEY = "targetingKey"
# The attribute of a context by which an application asks that its evaluation counts as an exposure.
EXPOSURE = "pointsman.exposure"


class FlagReason(StrEnum):
    """Why a flag has its value."""

    STATIC = "STATIC"  # all units get it
    SPLIT = "SPLIT"  # by the hash of the unit
    TARGETING_MATCH = "TARGETING_MATCH"  # of this unit: it was assigned before, or somebody has chosen


class FlagErrorCode(StrEnum):
    """Why a flag has none."""

    PARSE_ERROR = "PARSE_ERROR"
    TARGETING_KEY_MISSING = "TARGETING_KEY_MISSING"
    INVALID_CONTEXT = "INVALID_CONTEXT"
    FLAG_NOT_FOUND = "FLAG_NOT_FOUND"
    GENERAL = "GENERAL"


class FlagError(Exception):
    """A flag, or a request, that cannot be evaluated; the message says why and what would be right."""

    def __init__(self, code: FlagErrorCode, details: str) -> None:
        super().__init__(details)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status of a reply that is this error."""
        return 404 if self.code is FlagErrorCode.FLAG_NOT_FOUND else 400

    def json(self, key: str | None = None) -> dict[str, Any]:
        """`key` is the flag's, None where the error is of no single one."""
        named = {} if key is None else {"key": key}
        return {**named, "errorCode": self.code.value, "errorDetails": str(self)}


@dataclass(frozen=True, slots=True)
class FlagValue:
    """A flag's value for one context."""

    key: str
    value: str
    reason: FlagReason
    metadata: Mapping[str, str | float | bool] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "value": self.value,
            "variant": self.value,
            "reason": self.reason.value,
            "metadata": dict(self.metadata),
        }


class FlagContext:
    """What an application knows of a user."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        """Raises: FlagError."""
        self._attributes = attributes
        key = attributes.get(TARGETING_KEY)
        if key is not None and not isinstance(key, str):
            raise FlagError(FlagErrorCode.INVALID_CONTEXT, f"{TARGETING_KEY} is no text")
        self.targeting_key = (key or "").strip()
        exposure = attributes.get(EXPOSURE, False)
        if not isinstance(exposure, bool):
            raise FlagError(FlagErrorCode.INVALID_CONTEXT, f"{EXPOSURE} is neither true nor false")
        self.is_exposure = exposure

    def attribute(self, name: str) -> str | float | bool | None:
        """The attribute of this name, in any case where there is none in this one; None where it is missing or empty.

        Raises: FlagError where it is no text, number or boolean.
        """
        value = self._attributes.get(name)
        if value is None:
            lower = name.lower()
            value = next((each for key, each in self._attributes.items() if key.lower() == lower), None)
        if value is None or value == "":
            return None
        if not isinstance(value, str | int | float | bool):
            raise FlagError(FlagErrorCode.INVALID_CONTEXT, f"{name} is no text, number or boolean")
        return value


def read_context(body: bytes) -> FlagContext:
    """The context of a request.

    Raises: FlagError, GatewayError(BODY_TOO_LARGE).
    """
    if len(body) > MAX_BYTES:
        raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"the context of a flag is longer than {MAX_BYTES} bytes")
    try:
        request: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FlagError(FlagErrorCode.PARSE_ERROR, f"the body is no JSON: {error}") from error
    if not isinstance(request, dict):
        raise FlagError(FlagErrorCode.PARSE_ERROR, "the body is a JSON object with a context")
    context = request.get("context", {})
    if not isinstance(context, dict):
        raise FlagError(FlagErrorCode.INVALID_CONTEXT, f"context is a JSON object with {TARGETING_KEY}")
    return FlagContext(context)


def write_flags(flags: Sequence[Mapping[str, Any]]) -> tuple[bytes, bytes]:
    """The body of a reply with all flags, and its entity tag."""
    body = orjson.dumps({"flags": flags})
    return body, b'"%b"' % hashlib.blake2b(body, digest_size=12).hexdigest().encode("ascii")


def is_unchanged(if_none_match: bytes | None, tag: bytes) -> bool:
    """Whether a client has the reply with this tag. Source: RFC 9110, section 13.1.2 (weak comparison)."""
    if not if_none_match:
        return False
    tags = [each.strip().removeprefix(b"W/") for each in if_none_match.split(b",")]
    # Providers in the field send the tag without its quotes, too.
    return b"*" in tags or tag in tags or tag.strip(b'"') in tags
