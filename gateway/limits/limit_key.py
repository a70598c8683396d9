"""The key of a request's account: the values of the fields in a limit's `per`."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

from gateway.config.limit_specs import BudgetSpec, LimitSpec
from gateway.config.specs import IdentitySpec
from gateway.limits.budget_window import OTHERS
from gateway.protocol.credentials import digest_of, is_credential
from gateway.protocol.principal import KEY_FIELD
from gateway.protocol.sequence import read_name, read_text, record_name

# One value for each entry of `per`, in its order.
LimitKey = bytes | tuple[bytes, ...]

_BEARER = b"bearer "
# Longer values are replaced by their digest.
_MAX_LENGTH = 1024
# The characters of a client's value that operators see.
_MAX_SHOWN = 40


class LimitedRequest(Protocol):
    """A request under a limit."""

    @property
    def route(self) -> str:
        """The name of its route."""
        ...

    @property
    def session(self) -> str | None:
        """Its session, if the rules have determined it."""
        ...

    def field(self, name: bytes) -> bytes | None:
        """The first header field of this name, in lower case."""
        ...

    def expected_tokens(self) -> int:
        """An estimate of the tokens it will use; 0 if it is not a generation."""
        ...


def header_names(
    spec: LimitSpec | BudgetSpec, identity: IdentitySpec, *, is_verified: bool = False
) -> frozenset[bytes]:
    """The names of the header fields that a key is read from, in lower case. `is_verified`: the rules have `auth:`."""
    names: set[str] = set()
    for part in spec.per:
        if part == "key" and is_verified:
            names.add(KEY_FIELD.decode())
        elif part == "key":
            names.update(("authorization", "x-api-key", "api-key"))
        elif part.startswith("header:"):
            names.add(part.removeprefix("header:"))
    if "tenant" in spec.per or ("session" in spec.per and is_verified):
        names.add(identity.tenant_header)
    if "session" in spec.per:
        names.add(identity.session_header)
    return frozenset(name.encode("ascii") for name in names)


def reader_of(
    spec: LimitSpec | BudgetSpec, identity: IdentitySpec, *, is_verified: bool = False
) -> Callable[[LimitedRequest], LimitKey]:
    """Returns: the function that reads a request's key; a missing value is empty. `is_verified`: as above."""
    readers = [_reader(part, identity, is_verified) for part in spec.per]
    if not readers:
        return lambda request: b""
    if len(readers) == 1:
        return readers[0]
    return lambda request: tuple([read(request) for read in readers])


def _reader(part: str, identity: IdentitySpec, is_verified: bool) -> Callable[[LimitedRequest], bytes]:
    if part == "route":
        return lambda request: request.route.encode()
    if part == "key":
        return _verified_key if is_verified else _key
    if part == "session":
        return _session_reader(identity, is_verified)
    name = (identity.tenant_header if part == "tenant" else part.removeprefix("header:")).encode("ascii")
    return lambda request: _bounded(request.field(name) or b"")


def _session_reader(identity: IdentitySpec, is_verified: bool) -> Callable[[LimitedRequest], bytes]:
    header, tenant = identity.session_header.encode(), identity.tenant_header.encode()
    if not is_verified:
        return lambda request: (request.session or read_name(request.field(header) or b"")).encode()

    def of_tenant(request: LimitedRequest) -> bytes:
        session = request.session or read_name(request.field(header) or b"")
        return record_name(session, read_text(request.field(tenant) or b"")).encode() if session else b""

    return of_tenant


def _verified_key(request: LimitedRequest) -> bytes:
    """The id of the verified API key, or the subject of the token."""
    return _bounded(request.field(KEY_FIELD) or b"")


def _key(request: LimitedRequest) -> bytes:
    """The API key, from any of the headers that clients use."""
    value = request.field(b"authorization")
    if value is None:
        return _bounded(request.field(b"x-api-key") or request.field(b"api-key") or b"")
    return _bounded(value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else value)


def _bounded(value: bytes) -> bytes:
    """The value, or its digest if it is long."""
    return value if len(value) <= _MAX_LENGTH else sha256(value).hexdigest().encode("ascii")


def digest(spec: LimitSpec, limit_key: LimitKey) -> str:
    """The name in Redis, of fixed length; it reveals nothing of a key."""
    values = limit_key if isinstance(limit_key, tuple) else (limit_key,)
    value = b"".join(b"%d:%b" % (len(value), value) for value in values)
    return sha256("\0".join(spec.per).encode() + b"\0" + value).hexdigest()[:32]


def account_name(spec: BudgetSpec, limit_key: LimitKey, *, is_verified: bool) -> tuple[str, ...]:
    """The values by which operators know an account, one for each entry of `per`; of a credential and of a session its
    digest. `is_verified`: as above."""
    values = limit_key if isinstance(limit_key, tuple) else (limit_key,)
    return tuple(
        digest_of(value)
        if value and not (part == "key" and is_verified) and (part == "session" or is_credential(part))
        else _account_text(value)
        for part, value in zip(spec.per, values, strict=False)
    )


def _account_text(value: bytes) -> str:
    """A value as rules write it; no client names the account that others share."""
    text = read_text(value)
    return text if text != OTHERS else value.decode("latin-1")


def shown(spec: LimitSpec, limit_key: LimitKey) -> str:
    """The name for operators; of a credential and of a session it has their digest."""
    values = limit_key if isinstance(limit_key, tuple) else (limit_key,)
    return ", ".join(f"{part} {_shown(part, value)}" for part, value in zip(spec.per, values, strict=False))


def _shown(part: str, value: bytes) -> str:
    if not value:
        return "(none)"
    if part == "session" or is_credential(part):
        return digest_of(value)
    text = read_text(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_SHOWN])
