"""Sequences of Triton (requests of one model with a common correlation id), and session ids of any front."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

# Between the model and the id in a sequence's name. Names of sessions have none: see `bounded`.
SEPARATOR = "\0"


@dataclass(slots=True)
class Sequence:
    """The Triton sequence of one request, and the request's part in it."""

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
        self.name = f"{self.model}{SEPARATOR}{self.id}"


# What a request belongs to: a session, by its name, or a sequence.
AnySession = str | Sequence


def name_of(session: AnySession) -> str:
    """The name that identifies a session or sequence in this process."""
    return session if isinstance(session, str) else session.name


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


def may_stand_in_a_field(name: str) -> bool:
    """Whether a header field can carry it unchanged: no control characters, no blanks at its ends."""
    return name.isprintable() and name == name.strip()
