"""Facts of a request's body that rules can match, and their reader for V2's JSON: parameters and input tensors.

Tensors' values are parsed, since JSON allows no other way, and dropped. A binary request has its values behind the
JSON: the caller cuts at Inference-Header-Content-Length and passes the JSON alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import orjson

from gateway.protocol.datatypes import data_bytes
from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.protocol.json_bounds import BOUNDS, SHORT_BYTES, JsonBounds
from gateway.protocol.operations import INFERENCE_OPERATIONS, Operation

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class InputFacts:
    """One input tensor as its JSON head declares it; `num_bytes` is the size of its data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """What stands in the body: read only when a rule that could still match asks for it."""

    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    inputs: tuple[InputFacts, ...] = ()
    has_image: bool = False  # some message has an image in it
    error: GatewayError | None = None  # why the body cannot be read; a rule that asks for it refuses the request


NO_BODY = BodyFacts()


# numpy's limit; without one, the product of a million axes keeps the event loop for minutes.
MAX_RANK = 64
# The parameters of a request, first in it or behind its id.
_PARAMETERS = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*"[^"\\]*"\s*,\s*)?"parameters"\s*:\s*(\{[^{}]*\})')
_DATA_KEY = b'"data"'
_DATA_OPENING = re.compile(rb'"data"\s*+:\s*+(?=\[)')
_BETWEEN_MEMBERS = b", \t\r\n"
_WINDOW_BYTES = 1024
# Where an input's data lies outside the JSON, one of these parameters tells its size.
_SIZE_PARAMETERS = ("binary_data_size", "shared_memory_byte_size")


def read_body_facts(operation: Operation, body: bytes, bounds: JsonBounds = BOUNDS) -> BodyFacts:
    """Read an inference's JSON; NO_BODY for other operations and for an empty JSON (a raw binary request). Raises:
    GatewayError (BAD_REQUEST) where the JSON, or a field that rules could ask for, is malformed; (BODY_TOO_LARGE) where
    it has more than `bounds` allow, beside the numbers of tensors."""
    if operation not in INFERENCE_OPERATIONS or not body:
        return NO_BODY
    try:
        message = _read(body, bounds)
    except ValueError as error:
        raise bad_request(f"failed to parse the request JSON: {error}") from error
    if not isinstance(message, dict):
        raise bad_request("the request JSON must be an object")
    if operation is Operation.INFER:
        return BodyFacts(_scalars(_object(message, "parameters")), _inputs(message.get("inputs", [])))
    return BodyFacts(_generate_parameters(message))


def read_parameters(operation: Operation, body: bytes, bounds: JsonBounds = BOUNDS) -> Mapping[str, Scalar]:
    """The parameters alone, a part of the price where inputs are not needed; none where the body cannot be read.

    Raises: GatewayError(BODY_TOO_LARGE), as `read_body_facts`.
    """
    try:
        if operation is Operation.INFER:
            first = _parameters_before_inputs(body)
            if first is not None:
                return _scalars(first)
        message = _read(body, bounds)
        if not isinstance(message, dict):
            return {}
        if operation is Operation.INFER:
            return _scalars(_object(message, "parameters"))
        return _generate_parameters(message)
    except ValueError:
        return {}
    except GatewayError as error:
        if error.kind is ErrorKind.BODY_TOO_LARGE:
            raise
        return {}


def _read(body: bytes, bounds: JsonBounds) -> Any:
    """The document, where it is long without its tensors' numbers."""
    return bounds.read(body if len(body) <= SHORT_BYTES else without_numbers(body, bounds))


def _is_balanced(body: bytes, start: int, stop: int) -> bool:
    """Whether each array that begins there ends there. Mostly it is one, which a search shows sooner than counts."""
    if body.startswith(b"[", start) and body.find(b"[", start + 1, stop) < 0:
        return body.find(b"]", start, stop) == stop - 1
    return body.count(b"[", start, stop) == body.count(b"]", start, stop)


def without_numbers(body: bytes, bounds: JsonBounds) -> bytes:
    """JSON with `[]` for each array of numbers under a key `data`: rules read their types and shapes alone.

    An unescaped quote before `data"` begins a text, and nothing in an array of scalars but texts holds a quote, so what
    lies between the key's bracket and the next quote or brace is arrays and scalars, or ends with the start of a text.

    Raises: GatewayError(BODY_TOO_LARGE) where the key stands more often than a request has items.
    """
    at = body.find(_DATA_KEY)
    if at < 0:
        return body
    bounds.check_count(body.count(_DATA_KEY, at))
    pieces: list[bytes] = []
    done = 0
    while (at := body.find(_DATA_KEY, at)) >= 0:
        found = _DATA_OPENING.match(body, at) if body[at - 1 : at] != b"\\" else None
        at += len(_DATA_KEY)
        if found is None:
            continue
        start = found.end()
        quote = body.find(b'"', start)
        stop = quote if quote >= 0 else len(body)
        brace = body.find(b"}", start, stop)
        stop = brace if brace >= 0 else stop
        stop = _without_blanks(body, start, stop)
        if _is_balanced(body, start, stop) and body.find(b"{", start, stop) < 0:
            pieces += (body[done:start], b"[]")
            done = at = stop
    pieces.append(body[done:])
    return b"".join(pieces)


def _without_blanks(body: bytes, start: int, stop: int) -> int:
    """Where a part of a body ends without what may stand between members."""
    while stop > start:
        tail = body[max(start, stop - _WINDOW_BYTES) : stop]
        kept = tail.rstrip(_BETWEEN_MEMBERS)
        stop -= len(tail) - len(kept)
        if kept:
            break
    return stop


def _parameters_before_inputs(body: bytes) -> dict[str, Any] | None:
    """The parameters of an inference, where they stand before all tensors and have no objects in them, as clients write
    them; None where that is not sure. So tensors' values are not read."""
    found = _PARAMETERS.match(body)
    if found is None:
        return None
    try:
        parameters: dict[str, Any] = orjson.loads(found[1])
    except orjson.JSONDecodeError:  # a brace in a text
        return None
    return parameters


def _generate_parameters(message: Mapping[str, Any]) -> dict[str, Scalar]:
    """All keys of a generate request but its id, `text_input` too; a key in `parameters` wins over one beside it."""
    beside = {key: value for key, value in message.items() if key not in ("id", "parameters")}
    return _scalars(beside) | _scalars(_object(message, "parameters"))


def _scalars(values: Mapping[str, Any]) -> dict[str, Scalar]:
    return {key: value for key, value in values.items() if isinstance(value, str | int | float)}


def _inputs(inputs: Any) -> tuple[InputFacts, ...]:
    if not isinstance(inputs, list):
        raise bad_request("'inputs' must be an array")
    return tuple(_input(tensor) for tensor in inputs)


def _input(tensor: Any) -> InputFacts:
    if not isinstance(tensor, dict):
        raise bad_request("an input must be an object")
    name, datatype, shape = tensor.get("name"), tensor.get("datatype"), tensor.get("shape")
    if not isinstance(name, str):
        raise bad_request("an input must have a 'name'")
    if not isinstance(datatype, str):
        raise bad_request(f"input '{name}' must have a 'datatype'")
    if not _is_shape(shape):
        raise bad_request(f"input '{name}' must have a 'shape' of up to {MAX_RANK} whole numbers")
    return InputFacts(name, datatype, tuple(shape), _num_bytes(tensor, datatype, tuple(shape)))


def _is_shape(value: Any) -> TypeGuard[list[int]]:
    if not isinstance(value, list) or len(value) > MAX_RANK:
        return False
    return all(type(axis) is int and axis >= 0 for axis in value)


def _num_bytes(tensor: Mapping[str, Any], datatype: str, shape: tuple[int, ...]) -> int:
    """The size of the data: as a parameter declares it, else as shape and datatype or the texts themselves make it."""
    parameters = _object(tensor, "parameters")
    for key in _SIZE_PARAMETERS:
        declared = parameters.get(key)
        if type(declared) is int:
            return declared
    computed = data_bytes(datatype, shape)
    return _text_bytes(tensor.get("data")) if computed is None else computed


def _text_bytes(data: Any) -> int:
    """UTF-8 bytes of all texts in nested arrays, without the length words that the binary form adds."""
    total, left = 0, [data]
    while left:
        item = left.pop()
        if isinstance(item, str):
            total += len(item.encode())
        elif isinstance(item, list):
            left += item
    return total


def _object(message: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = message.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"'{key}' must be an object")
    return value
