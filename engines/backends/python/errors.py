"""`TritonError` and `TritonModelException`, as models raise and hand over them."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class TritonModelException(Exception):  # noqa: N818  named by Triton
    """Raised by the utilities, and by models."""


class _Code(IntEnum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """A message with one of Triton's codes, INTERNAL by default."""

    __slots__ = ("_code", "_message")

    UNKNOWN: ClassVar = _Code.UNKNOWN
    INTERNAL: ClassVar = _Code.INTERNAL
    NOT_FOUND: ClassVar = _Code.NOT_FOUND
    INVALID_ARG: ClassVar = _Code.INVALID_ARG
    UNAVAILABLE: ClassVar = _Code.UNAVAILABLE
    UNSUPPORTED: ClassVar = _Code.UNSUPPORTED
    ALREADY_EXISTS: ClassVar = _Code.ALREADY_EXISTS
    CANCELLED: ClassVar = _Code.CANCELLED

    def __init__(self, message: str, code: int = _Code.INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(f"the message of a TritonError is a str, not {type(message).__name__}")
        self._message = str(message)
        self._code = _Code(code)

    def code(self) -> int:
        return self._code

    def message(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"<TritonError {self._code.name}: {self._message}>"
