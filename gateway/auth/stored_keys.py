"""API keys in Redis: a hash with an entry for each key, by its id, and a version that each change replaces."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from math import inf

import orjson

from gateway.config.auth_specs import ApiKeySpec, key_hash, key_id, moment
from gateway.config.value_parsers import text
from gateway.protocol.stored_json import read_json_object
from gateway.redis.command import Command

_log = logging.getLogger(__name__)

_KEYS = "pointsman:1:keys"
_VERSION = "version"  # no id of a key: it has other letters

READ_VERSION: Command = ("HGET", _KEYS, _VERSION)
READ: Command = ("HGETALL", _KEYS)


def commands_to_store(entries: Iterable[Mapping[str, str]]) -> list[Command]:
    """Add these entries, with the fields that files have, or replace those of their ids; at once."""
    parts: list[str | bytes] = []
    for entry in entries:
        parts += [entry["id"], orjson.dumps({name: value for name, value in entry.items() if name != "id"})]
    return [("HSET", _KEYS, *parts, _VERSION, secrets.token_hex(8))]


def commands_to_remove(id: str) -> list[Command]:
    return [("HDEL", _KEYS, id), ("HSET", _KEYS, _VERSION, secrets.token_hex(8))]


def entries_of(reply: object) -> tuple[bytes, list[dict[str, str]]]:
    """The version, empty without one, and the entries as files have them, of a reply to `READ`. What is no entry is
    left out, and the log says so."""
    found = dict(reply) if isinstance(reply, Mapping) else dict(zip(*[iter(list(reply))] * 2, strict=True))  # type: ignore[call-overload]
    version = found.pop(_VERSION.encode(), b"")
    entries = []
    for id, content in sorted(found.items()):
        try:
            entry = {"id": id.decode(), **{str(name): str(value) for name, value in read_json_object(content).items()}}
            key_of(entry)
        except (ValueError, KeyError) as error:
            _log.error("the API key %r in Redis is refused: its entry cannot be read (%s)", id, error)
        else:
            entries.append(entry)
    return version, entries


def key_of(entry: Mapping[str, str]) -> ApiKeySpec:
    """Raises: ValueError, KeyError where the entry is none."""
    expires = moment(entry["expires"]) if "expires" in entry else inf
    name = text(entry["name"]) if entry.get("name") else ""
    return ApiKeySpec(key_id(entry["id"]), text(entry["tenant"]), key_hash(entry["hash"]), name, expires)
