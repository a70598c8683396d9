"""JSON fields, checked as they are read.

Raises: GatewayError(BAD_REQUEST) that names the field and what it must be, for the fields of a client's request;
GatewayError(UPSTREAM_PROTOCOL) for those of an engine's reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError

Fields = dict[str, Any]

Kind = type | tuple[type, ...]

NUMBER = (int, float)
_IN_WORDS: dict[Kind, str] = {
    str: "a string",
    int: "an integer",
    NUMBER: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def bad_request(message: str) -> GatewayError:
    return GatewayError(ErrorKind.BAD_REQUEST, message)


def read_fields(body: bytes) -> Fields:
    """The fields of a request's body, a JSON object."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise bad_request("the body must be a JSON object")
    return fields


def checked(value: Any, kind: Kind, where: str) -> Any:
    """The value, where it is of this kind; true is no number."""
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise bad_request(f"'{where}' must be {_IN_WORDS[kind]}")
    return value


def required(fields: Mapping[str, Any], name: str, kind: Kind, where: str = "") -> Any:
    """The field of this name; `where` is the path of what holds it."""
    path = f"{where}.{name}" if where else name
    if fields.get(name) is None:
        raise bad_request(f"'{path}' is missing; it must be {_IN_WORDS[kind]}")
    return checked(fields[name], kind, path)


def optional(fields: Mapping[str, Any], name: str, kind: Kind, where: str = "") -> Any:
    """As `required`, but None where the field is missing or null."""
    return None if fields.get(name) is None else required(fields, name, kind, where)


def objects(values: Any, where: str) -> Iterator[tuple[str, Fields]]:
    """Each object of a list, with its path."""
    for at, value in enumerate(checked(values, list, where)):
        path = f"{where}[{at}]"
        yield path, checked(value, dict, path)


def dumped(value: Any) -> bytes:
    """The value as JSON; BAD_REQUEST where it is nested deeper than orjson writes, 254 levels."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise bad_request(f"the body cannot be written for an engine: {error}") from error


def texts(values: Any, where: str) -> list[str]:
    """A list of strings."""
    return [checked(value, str, f"{where}[{at}]") for at, value in enumerate(checked(values, list, where))]


# What reading fields raises where an object or a list is something else.
MALFORMED = (AttributeError, KeyError, TypeError, ValueError)


def misunderstood(what: str) -> GatewayError:
    return GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine's reply cannot be understood: {what}")


def read_reply_fields(data: bytes) -> dict[str, Any]:
    """The fields of a reply or an event, a JSON object."""
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        excerpt = data[:200].decode("utf-8", "replace")
        raise misunderstood(f"it is not JSON: {excerpt!r}") from error
    if not isinstance(parsed, dict):
        raise misunderstood("it is no JSON object")
    return parsed


def text_in(parsed: Mapping[str, Any], name: str) -> str:
    """The text of this name, empty where there is none."""
    value = parsed.get(name)
    if isinstance(value, str):
        return value
    if value is not None:
        raise misunderstood(f"'{name}' is no string")
    return ""


def text_of(value: Any) -> str:
    """The value where it is a string."""
    return value if isinstance(value, str) else ""
