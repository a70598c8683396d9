"""A body of Triton's REST protocol, taken apart: the JSON object, its members by name and type, the raw tensors behind.

Everything here raises ValueError with a sentence that names the member.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeGuard

from gateway.protocol.conversion import triton_json

_MAX_INT64 = 2**63 - 1
# numpy's limit, and v2_facts': without one, a shape of a million axes keeps the event loop.
_MAX_RANK = 64


class Tail:
    """The raw tensors behind a body's JSON, taken in their order."""

    def __init__(self, data: memoryview) -> None:
        self._left = data

    def take(self, num_bytes: int) -> memoryview:
        if num_bytes > len(self._left):
            missing = num_bytes - len(self._left)
            raise ValueError(f"the body ends before its binary data, expecting {missing} additional bytes")
        taken, self._left = self._left[:num_bytes], self._left[num_bytes:]
        return taken

    def close(self) -> None:
        if self._left:
            raise ValueError(f"unexpected additional data: {len(self._left)} bytes behind the last binary tensor")


def cut(body: bytes, head_bytes: int | None) -> tuple[dict[str, Any], Tail]:
    """The object of a body's JSON, and the raw tensors behind it."""
    if head_bytes is None:
        return read_object(body), Tail(memoryview(b""))
    if not 0 <= head_bytes <= len(body):
        raise ValueError(f"inference header size should be in range (0, {len(body)}), got: {head_bytes}")
    return read_object(body[:head_bytes]), Tail(memoryview(body)[head_bytes:])


def read_object(text: bytes) -> dict[str, Any]:
    try:
        value = triton_json.read(text)
    except ValueError as error:
        raise ValueError(f"failed to parse the JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("the JSON must be an object")
    return value


class _AllMembers(dict[str, Any]):
    """A JSON object whose `items` has members of one name all."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def with_repeated_members(text: bytes, content: Any, names: Iterable[str]) -> Any:
    """The content of a JSON text, where one of these names may occur more than once: then `items` of the object and of
    its `parameters` has all members."""
    if not any(text.count(b'"%b"' % name.encode()) > 1 for name in names):
        return content
    pairs: dict[int, list[tuple[str, Any]]] = {}  # of each object; they hold the objects below them

    def read_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(members)
        pairs[id(value)] = members
        return value

    try:
        again = json.loads(text.decode("utf-8", "surrogateescape"), object_pairs_hook=read_members)
    except (ValueError, RecursionError):  # a spelling that is RapidJSON's own
        return content
    if id(again) not in pairs:
        return content
    members = [
        (name, _AllMembers(pairs[id(value)]) if name == "parameters" and id(value) in pairs else value)
        for name, value in pairs[id(again)]
    ]
    return _AllMembers(members)


def string(owner: Any, key: str) -> str:
    value = _member(owner, key)
    if not isinstance(value, str):
        raise ValueError(f"'{key}' must be a string")
    return value


def label(owner: dict[str, Any], key: str) -> str:
    """A text that some engines leave out, write as null, or as a number."""
    value = owner.get(key)
    return "" if value is None else str(value) if type(value) is int else string(owner, key)


def array(owner: Any, key: str) -> list[Any]:
    value = _member(owner, key)
    if not isinstance(value, list):
        raise ValueError(f"'{key}' must be an array")
    return value


def parameters(owner: dict[str, Any]) -> dict[str, Any]:
    """The members of `parameters`; none where it is null or missing."""
    value = owner.get("parameters")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("'parameters' must be an object")
    return value


def shape(owner: dict[str, Any]) -> list[int]:
    axes = array(owner, "shape")
    if len(axes) > _MAX_RANK or not all(is_size(axis) for axis in axes):
        raise ValueError(f"'shape' must be of up to {_MAX_RANK} whole numbers")
    return axes


def flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"'{key}' must be true or false")
    return value


def size(value: Any, key: str) -> int:
    if not is_size(value):
        raise ValueError(f"'{key}' must be a whole number")
    return value


def is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_INT64


def _member(owner: Any, key: str) -> Any:
    if not isinstance(owner, dict):
        raise ValueError(f"an object with '{key}' is expected")
    if key not in owner:
        raise ValueError(f"'{key}' is missing")
    return owner[key]
