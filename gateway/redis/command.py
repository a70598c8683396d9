"""Commands for Redis, Lua scripts, which are called by their digest, the prefix of keys, and the error of a failed
call. No client needed."""

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


# All keys of the gateway's own begin so, whatever they begin with in Redis.
KEY_PREFIX = "pointsman"

_ALL_ARGUMENTS = frozenset({"DEL"})
_BEFORE_KEYS = {"SCAN": "MATCH", "XREAD": "STREAMS"}  # the words that keys, or their patterns, follow
_SCRIPT_KEYS = 3  # behind the digest or the text, and their number


def with_prefix(command: Command, prefix: str) -> Command:
    """The command with `prefix` in place of `KEY_PREFIX` in its keys, and nowhere else."""
    name = command[0]
    if name in ("EVALSHA", "EVAL"):
        keys = range(_SCRIPT_KEYS, _SCRIPT_KEYS + command[2])
    elif name in _ALL_ARGUMENTS:
        keys = range(1, len(command))
    else:
        first = command.index(_BEFORE_KEYS[name]) + 1 if name in _BEFORE_KEYS else 1
        keys = range(first, first + 1)
    parts = list(command)
    for index in keys:
        parts[index] = _prefixed(parts[index], prefix)
    return tuple(parts)


def _prefixed(key: str | bytes, prefix: str) -> str | bytes:
    if isinstance(key, bytes):
        own = KEY_PREFIX.encode() + b":"
        return prefix.encode() + key[len(own) - 1 :] if key.startswith(own) else key
    own_text = f"{KEY_PREFIX}:"
    return prefix + key[len(own_text) - 1 :] if key.startswith(own_text) else key
