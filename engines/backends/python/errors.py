"""`TritonError` and `TritonModelException`, as models raise and hand over them."""

from __future__ import annotations

from engines.core.errors import ErrorCode


class TritonModelException(Exception):  # noqa: N818  named by Triton
    """Raised by the utilities, and by models."""


class TritonError:
    """A message with one of Triton's codes, INTERNAL by default; the codes are attributes of the class."""

    def __init__(self, message: str, code: int = ErrorCode.INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(f"the message of a TritonError is a str, not {type(message).__name__}")
        self._message = str(message)
        self._code = ErrorCode(code)

    def code(self) -> int:
        return self._code

    def message(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"<TritonError {self._code.name}: {self._message}>"


for _code in ErrorCode:
    setattr(TritonError, _code.name, _code)
