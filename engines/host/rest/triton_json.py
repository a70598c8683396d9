"""Values of a JSON text by type, with the words of Triton's own reader where one is of another type.

Source: Triton common `triton_json.h`: each of its errors is INTERNAL.
"""

from __future__ import annotations

from typing import Any

from engines.core.errors import EngineError, internal
from engines.host.rest.rapidjson_errors import fault_of
from gateway.protocol.conversion import triton_json

MAX_UINT64 = 2**64 - 1
_MAX_INT64 = 2**63 - 1


def read_json(text: bytes) -> Any:
    """Raises: EngineError(INTERNAL) where it is none."""
    try:
        return triton_json.read(text)
    except ValueError:
        raise internal(fault_of(text)) from None


def member(owner: Any, name: str, about: str = "") -> Any:
    """Raises: EngineError where it has none of that name; `about` stands before the text."""
    if not isinstance(owner, dict) or name not in owner:
        raise _fault(about, f"attempt to access non-existing object member '{name}'")
    return owner[name]


def string(value: Any, about: str = "") -> str:
    if not isinstance(value, str):
        raise _fault(about, "attempt to access JSON non-string as string")
    return value


def flag(value: Any, about: str = "") -> bool:
    if not isinstance(value, bool):
        raise _fault(about, "attempt to access JSON non-boolean as boolean")
    return value


def unsigned(value: Any, about: str = "") -> int:
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise _fault(about, "attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def array(value: Any, about: str = "") -> list[Any]:
    if not isinstance(value, list):
        raise _fault(about, "attempt to access JSON non-array as array")
    return value


def members(value: Any, about: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _fault(about, "attempt to get members for non-object")
    return value


def is_signed(value: Any) -> bool:
    return type(value) is int and -_MAX_INT64 - 1 <= value <= _MAX_INT64


def found(owner: Any, name: str) -> Any:
    """A member, None where it has none of that name or is no object; null is none of any type."""
    return owner.get(name, None) if isinstance(owner, dict) else None


def has(owner: Any, name: str) -> bool:
    return isinstance(owner, dict) and name in owner


def _fault(about: str, text: str) -> EngineError:
    return internal(f"{about}: {text}" if about else text)
