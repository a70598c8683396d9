"""Whose allowance a request draws on: what its fields say, as a limit's `per` names it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

from gateway.config.specs import IdentitySpec, LimitSpec
from gateway.protocol.session_id import read_name

# The values of what `per` names, in its order.
Who = bytes | tuple[bytes, ...]

_BEARER = b"bearer "
# What is remembered of each, of ten thousand for a limit.
_MAX_LENGTH = 1024
# What is shown of a value that a client chose.
_MAX_SHOWN = 40
_SECRET_FIELDS = (
    "header:authorization",
    "header:x-api-key",
    "header:api-key",
    "header:cookie",
    "header:proxy-authorization",
)


class LimitedRequest(Protocol):
    """A request that may have to wait for its allowance."""

    @property
    def route(self) -> str:
        """The name of its route."""
        ...

    @property
    def session(self) -> str | None:
        """Its session, where the rules have found it."""
        ...

    def field(self, name: bytes) -> bytes | None:
        """The first header field of this name, in lower case."""
        ...

    def expected_tokens(self) -> int:
        """How many tokens it may use; 0 where it is no generation."""
        ...


def reader_of(spec: LimitSpec, identity: IdentitySpec) -> Callable[[LimitedRequest], Who]:
    """The function that reads whose a request is; what a request does not say is empty."""
    readers = [_reader(part, identity) for part in spec.per]
    if not readers:
        return lambda asker: b""
    if len(readers) == 1:
        return readers[0]
    return lambda asker: tuple([read(asker) for read in readers])


def _reader(part: str, identity: IdentitySpec) -> Callable[[LimitedRequest], bytes]:
    if part == "route":
        return lambda asker: asker.route.encode()
    if part == "key":
        return _key
    if part == "session":
        header = identity.session_header.encode()
        return lambda asker: (asker.session or read_name(asker.field(header) or b"")).encode()
    name = identity.tenant_header if part == "tenant" else part.removeprefix("header:")
    return _field_reader(name.encode("ascii"))


def _field_reader(name: bytes) -> Callable[[LimitedRequest], bytes]:
    return lambda asker: _bounded(asker.field(name) or b"")


def _key(asker: LimitedRequest) -> bytes:
    """An API key, wherever clients put it."""
    told = asker.field(b"authorization")
    if told is None:
        return _bounded(asker.field(b"x-api-key") or asker.field(b"api-key") or b"")
    return _bounded(told[len(_BEARER) :].strip() if told[: len(_BEARER)].lower() == _BEARER else told)


def _bounded(value: bytes) -> bytes:
    """What somebody says of himself; of what is long the digest, since it is remembered."""
    return value if len(value) <= _MAX_LENGTH else sha256(value).hexdigest().encode("ascii")


def digest(spec: LimitSpec, who: Who) -> str:
    """The name in Redis: of one length, and nothing of a key can be read from it."""
    values = who if isinstance(who, tuple) else (who,)
    told = b"".join(b"%d:%b" % (len(value), value) for value in values)
    return sha256("\0".join(spec.per).encode() + b"\0" + told).hexdigest()[:32]


def shown(spec: LimitSpec, who: Who) -> str:
    """The name for operators; of a secret its digest's beginning."""
    values = who if isinstance(who, tuple) else (who,)
    return ", ".join(f"{part} {_shown(part, value)}" for part, value in zip(spec.per, values, strict=False))


def _shown(part: str, value: bytes) -> str:
    if not value:
        return "(none)"
    if part == "key" or part in _SECRET_FIELDS:
        return f"sha256:{sha256(value).hexdigest()[:12]}"
    text = value.decode("latin-1")
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_SHOWN])
