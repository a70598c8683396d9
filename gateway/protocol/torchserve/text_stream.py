"""Texts out of a stream of TorchServe's, whose pieces are what the handler sent, cut anywhere on the way."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from typing import Any

from gateway.protocol.errors import ErrorKind, GatewayError

# An object holds one piece of text, and what its handler tells beside it.
MAX_OBJECT_CHARACTERS = 1024 * 1024

_SPACE = " \t\r\n"


class TextReader:
    """Reads UTF-8, a character that is cut in two among it."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")()

    def feed(self, data: bytes, *, is_last: bool = False) -> str:
        """The text that is whole by now.

        Raises: GatewayError(UPSTREAM_PROTOCOL) where it is not UTF-8.
        """
        try:
            return self._decoder.decode(data, is_last)
        except UnicodeDecodeError:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's text is not UTF-8") from None


class ObjectReader:
    """Splits text into the JSON objects that follow each other in it; what begins otherwise is text as it is."""

    def __init__(self) -> None:
        self._left = ""
        self._is_text = False
        self._decode = json.JSONDecoder().raw_decode

    def feed(self, text: str) -> list[dict[str, Any] | str]:
        """The objects that are whole by now, or the text.

        Raises: GatewayError(UPSTREAM_PROTOCOL) where an object is longer than the limit.
        """
        if self._is_text:
            return [text] if text else []
        left = (self._left + text).lstrip(_SPACE)
        found: list[dict[str, Any] | str] = []
        while left:
            if left[0] != "{":
                self._is_text = not found
                found.append(left)
                left = ""
                break
            try:
                value, stop = self._decode(left)
            except (ValueError, RecursionError):
                break
            found.append(value)
            left = left[stop:].lstrip(_SPACE)
        if len(left) > MAX_OBJECT_CHARACTERS:
            raise GatewayError(
                ErrorKind.UPSTREAM_PROTOCOL, f"an object is longer than {MAX_OBJECT_CHARACTERS} characters"
            )
        self._left = left
        return found

    def end(self) -> str:
        """What was left of an object that has no end: text."""
        left, self._left = self._left, ""
        return left
