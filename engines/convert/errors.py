"""What goes wrong in a conversion, told to whoever asked for it."""

from __future__ import annotations


class ConversionError(Exception):
    """A conversion that cannot be done; `advice` is what can be done instead, if anything."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


def first_line(error: BaseException) -> str:
    """What an error of a framework says first: what follows may be a whole graph, or a whole tensor."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
