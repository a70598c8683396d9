"""Commands for Redis, Lua scripts, which are called by their digest, and the error of a failed call. No client
needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any


class StoreError(Exception):
    """Redis did not answer in time, cannot be reached, or cannot serve now; the message says which."""


Command = tuple[Any, ...]  # ("HSET", key, field, value)


class Script:
    """A Lua script; `command` calls it by its digest, and the client sends its text where Redis does not know it."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def command(self, keys: Sequence[str | bytes], arguments: Sequence[Any]) -> Command:
        _SCRIPTS[self.digest] = self
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)


_SCRIPTS: dict[str, Script] = {}  # by digest, of this process


def in_full(command: Command) -> Command:
    return ("EVAL", _SCRIPTS[command[1]].text, *command[2:])
