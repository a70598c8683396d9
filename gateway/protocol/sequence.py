"""Sequences of Triton (requests of one model with a common correlation id), and session ids of any front."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

# Between the model and the id in a sequence's name. Names of sessions have none: see `bounded`.
SEPARATOR = "\0"
# Between the tenant and the id in the name of a tenant's session.
_OF_TENANT = "\1"


class TenantSession(str):
    """The id of a session, where the rules have `auth:`. `name` identifies its records: sessions of different tenants
    have different names."""

    __slots__ = ("name",)

    name: str

    def __new__(cls, id: str, tenant: str) -> TenantSession:
        """`tenant` is the verified caller's, empty of an anonymous one."""
        session = super().__new__(cls, id)
        tenant = bounded(tenant)
        session.name = f"{digest_of(tenant) if _OF_TENANT in tenant else tenant}{_OF_TENANT}{id}"
        return session


@dataclass(slots=True)
class Sequence:
    """The Triton sequence of one request, and the request's part in it; `id` is a `TenantSession` where the rules have
    `auth:`."""

    id: str
    model: str
    starts: bool = False
    ends: bool = False
    # Where inputs are stored: the request's number in its sequence, from 1; 0 if it has none, and `unkept` says why;
    # None before that, and where inputs are not stored. `run` tells the sequence from earlier ones with its id.
    # `adrift`: why its place is unknown.
    step: int | None = None
    run: str = ""
    unkept: str = ""
    adrift: str = ""
    name: str = field(init=False)  # identifies it among sessions and other models' sequences

    def __post_init__(self) -> None:
        self.name = f"{self.model}{SEPARATOR}{name_of(self.id)}"


# What a request belongs to: a session, by its name, or a sequence.
AnySession = str | Sequence


def name_of(session: AnySession) -> str:
    """The name that identifies a session or sequence in this process, and its records."""
    return session if type(session) is str else session.name  # type: ignore[union-attr]


def record_name(id: str, tenant: str | None) -> str:
    """The name of the session with this id; `tenant` is None where the rules have no `auth:`."""
    return bounded(id) if tenant is None else TenantSession(bounded(id), tenant).name


def id_of(session: AnySession) -> str:
    """The id that the client has sent."""
    return session if isinstance(session, str) else session.id


def is_sequence(name: str) -> bool:
    """Whether a name is a sequence's."""
    return SEPARATOR in name


# Ten thousands of names are stored in memory, keys and events: clients must not fill these with long names.
_MAX_LENGTH = 256


def bounded(name: str) -> str:
    """The name, or its digest if it is longer than 256 characters or contains a NUL."""
    return name if len(name) <= _MAX_LENGTH and SEPARATOR not in name else digest_of(name)


def digest_of(name: str) -> str:
    """A name of fixed length, of letters and digits, for any name."""
    return "sha256-" + hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()


def read_text(value: bytes) -> str:
    """The text of a header or a cookie: UTF-8, so that it equals the text in a JSON body or a rule, else Latin-1."""
    try:
        return value.decode().strip()
    except UnicodeDecodeError:
        return value.decode("latin-1").strip()


def read_name(value: bytes) -> str:
    """The name of the session in a header or a cookie."""
    return bounded(read_text(value))


def session_reader(tenant: str) -> Callable[[bytes], str]:
    """As `read_name`, of the sessions of a tenant."""
    return lambda value: TenantSession(read_name(value), tenant)


def may_stand_in_a_field(name: str) -> bool:
    """Whether a header field can carry it unchanged: no control characters, no blanks at its ends."""
    return name.isprintable() and name == name.strip()
