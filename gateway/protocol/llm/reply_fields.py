"""What an engine tells in JSON, checked as it is read: what is malformed is the engine's fault, and said to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError

# What reading fields raises where an object or a list is something else.
MALFORMED = (AttributeError, KeyError, TypeError, ValueError)


def misunderstood(what: str) -> GatewayError:
    return GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine's reply cannot be understood: {what}")


def read_told(data: bytes) -> dict[str, Any]:
    """The fields of a reply or an event.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is not a JSON object.
    """
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise misunderstood(f"it is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise misunderstood("it is no JSON object")
    return told


def text_in(told: Mapping[str, Any], name: str) -> str:
    """The text of this name, empty where there is none.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is no string.
    """
    value = told.get(name)
    if isinstance(value, str):
        return value
    if value is not None:
        raise misunderstood(f"'{name}' is no string")
    return ""
