"""Keys of the admin API: a file of names and roles with a salted hash of each key.

    - name: ci
      role: operator
      id: 5f1c09ab
      hash: scrypt:16384:8:1:SALT:DIGEST
      expires: 2027-01-31                  # optional
      scope: engine:cuda, model:llama-*    # optional: what it may change; it reads everything

A key is `pm-ID-SECRET`. The id names the entry, so a guess costs one hash at most, and none where no entry has the id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from pathlib import Path

from gateway.config.auth_specs import moment
from gateway.yaml import values
from gateway.yaml.nodes import Items, Map, Node, Scalar, read_yaml
from gateway.yaml.problems import Location, Problem
from gateway.yaml.readers import Reading, Record, expected, scalar

# RFC 7914's recommendation for interactive use: 16 MiB and about 40 ms. Generated secrets have 256 random bits; the
# cost protects keys that users choose themselves.
_COST, _BLOCK, _LANES = 16384, 8, 1
_MAX_MEMORY_BYTES = 256 * 1024 * 1024
# Sixteen times the work of our own hashes: every caller waits for a hash.
_MAX_WORK = 16 * _COST * _BLOCK * _LANES
_KEY = re.compile(r"pm-([0-9a-f]{8})-([A-Za-z0-9_-]{43})")


class Role(IntEnum):
    """What a caller may do; each role includes the lower ones."""

    viewer = 1
    operator = 2
    admin = 3


SCOPE_KINDS = ("engine", "model", "experiment")


@dataclass(frozen=True, slots=True)
class Scope:
    """Engines, models or experiments that a key may change; `pattern` is a name, or a glob."""

    kind: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}"


def read_scopes(text: str) -> tuple[Scope, ...]:
    """The scopes of `engine:cuda, model:llama-*`.

    Raises: ValueError.
    """
    scopes = tuple(Scope(*map(str.strip, each.partition(":")[::2])) for each in text.split(","))
    for scope in scopes:
        if scope.kind not in SCOPE_KINDS or not scope.pattern:
            raise ValueError(f"{str(scope)!r} is not a scope: write engine:NAME, model:NAME or experiment:NAME")
    return scopes


@dataclass(frozen=True, slots=True)
class KeyHash:
    """A secret's scrypt hash with its parameters."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    digest: bytes

    def __str__(self) -> str:
        salt, digest = (base64.urlsafe_b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt:{self.cost}:{self.block}:{self.lanes}:{salt}:{digest}"

    def matches(self, key: str) -> bool:
        """Whether this is the hash of that key, in constant time."""
        return hmac.compare_digest(_scrypt(key, self.salt, self.cost, self.block, self.lanes), self.digest)


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """An entry of the file: the key's owner, id and hash."""

    name: str
    role: Role
    id: str
    hash: KeyHash
    expires: float | None = None  # seconds since 1970
    scope: tuple[Scope, ...] = ()
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of the key of a call; `id` is its entry's in the keys file, empty for the gateway's own key."""

    name: str
    role: Role
    id: str = ""
    expires: float | None = None  # seconds since 1970
    scope: tuple[Scope, ...] = ()  # none: everything that the role may change

    def may_change(self, kind: str | None, name: str) -> bool:
        """Whether something of a kind, None where it has none, is in the key's scope."""
        return not self.scope or any(scope.kind == kind and fnmatchcase(name, scope.pattern) for scope in self.scope)


class KeysError(Exception):
    """A keys file that cannot be used; the message has a line for each error."""


def make_key(name: str, role: Role) -> tuple[str, KeyEntry]:
    """A new key and its entry."""
    id = secrets.token_hex(4)
    key = f"pm-{id}-{secrets.token_urlsafe(32)}"
    salt = secrets.token_bytes(16)
    return key, KeyEntry(
        name, role, id, KeyHash(_COST, _BLOCK, _LANES, salt, _scrypt(key, salt, _COST, _BLOCK, _LANES))
    )


def id_of(key: str) -> str | None:
    """The id in a key; None where it is malformed."""
    match = _KEY.fullmatch(key)
    return match[1] if match is not None else None


def read_keys(path: Path) -> dict[str, KeyEntry]:
    """The entries of a keys file by their ids.

    Raises: KeysError.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise KeysError(f"the keys file {path} cannot be read: {error}") from error
    reading = Reading()
    entries = _read(read_yaml(text, str(path), {}, reading.problems), reading)
    if reading.problems:
        raise KeysError("\n".join(map(str, reading.problems)))
    return entries


def _read(root: Node, reading: Reading) -> dict[str, KeyEntry]:
    if isinstance(root, Scalar) and root.is_null:  # an empty file admits no caller
        return {}
    if not isinstance(root, Items):
        expected(root, "a list of keys", reading)
        return {}
    entries: dict[str, KeyEntry] = {}
    for node in root.nodes:
        entry = _ENTRY(node, reading, location=node.location)
        if entry is None:
            continue
        reading.declare("key", entry.name, node.location)
        if entry.id in entries:
            reading.problems.append(Problem(_place(node, "id"), f"id {entry.id!r} is that of another key, too"))
        entries[entry.id] = entry
    return entries


def _place(node: Node, key: str) -> Location:
    return node.entries[key].location if isinstance(node, Map) else node.location


def _id(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{8}", text):
        raise ValueError(f"{text!r} is not a key's id: 8 hexadecimal digits, as `pointsman keys add` writes them")
    return text


def _hash(text: str) -> KeyHash:
    try:
        kind, cost, block, lanes, salt, digest = text.split(":")
        if kind != "scrypt":
            raise ValueError(kind)
        parsed = KeyHash(int(cost), int(block), int(lanes), _bytes(salt), _bytes(digest))
        _check_work(parsed.cost, parsed.block, parsed.lanes)
    except ValueError as error:
        raise ValueError("not a hash that `pointsman keys add` has written: scrypt:N:R:P:SALT:DIGEST") from error
    return parsed


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _check_work(cost: int, block: int, lanes: int) -> None:
    """Check scrypt's parameters without running it. Source: RFC 7914, section 2.

    Raises: ValueError.
    """
    if min(cost - 1, block, lanes) < 1 or cost & (cost - 1) or cost.bit_length() > 16 * block:
        raise ValueError("no parameters of scrypt's")
    if 128 * block * (cost + lanes + 2) > _MAX_MEMORY_BYTES or cost * block * lanes > _MAX_WORK:
        raise ValueError("too much work")


def _scrypt(key: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    """Raises: ValueError where the parameters are invalid or need too much memory."""
    return hashlib.scrypt(key.encode(), salt=salt, n=cost, r=block, p=lanes, maxmem=_MAX_MEMORY_BYTES, dklen=32)


_FIELDS = {
    "name": scalar(values.name),
    "role": scalar(lambda text: Role[values.one_of(Role.__members__)(text)]),
    "id": scalar(_id),
    "hash": scalar(_hash),
    "expires": scalar(moment),
    "scope": scalar(read_scopes),
}
_ENTRY: Record[KeyEntry] = Record("a key", KeyEntry, _FIELDS, required=("name", "role", "id", "hash"))


def entry_fields(entry: KeyEntry) -> Mapping[str, str]:
    return {"name": entry.name, "role": entry.role.name, "id": entry.id, "hash": str(entry.hash)}
