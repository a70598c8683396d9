"""Sequences of Triton (requests of one model with a common correlation id), and session ids of any front."""

from __future__ import annotations

import hashlib


class Sequence(str):
    """The id of a Triton sequence, with the model it is of and which end of it a request is. It is a session to all who
    only ask where it goes; `name` tells it from a session with the same text."""

    model: str
    starts: bool
    ends: bool
    # Of a request whose input is kept: its place in its sequence, from 1; 0 where it has none, and `unkept` says why;
    # None where nobody keeps it. `run` tells the sequence from others that had its id before. `adrift` says why nobody
    # can tell where it is.
    step: int | None
    run: str
    unkept: str
    adrift: str

    def __new__(cls, text: str, model: str, *, starts: bool = False, ends: bool = False) -> Sequence:
        made = super().__new__(cls, text)
        made.model = model
        made.starts = starts
        made.ends = ends
        made.step = None
        made.run = ""
        made.unkept = ""
        made.adrift = ""
        return made

    @property
    def name(self) -> str:
        """What it is known by among sessions and other models' sequences."""
        return f"{self.model}\0{self}"


def name_of(session: str) -> str:
    """What a session or a sequence is known by in this process."""
    return session.name if isinstance(session, Sequence) else session


# Names are kept in memory, in keys and in news, by the ten thousand: who invents long ones must not fill these.
_MAX_LENGTH = 256


def bounded(name: str) -> str:
    """The name; its digest, which is as good as the name everywhere, where that is longer than 256 characters, or has a
    NUL, by which a sequence's name here differs from all sessions'."""
    return name if len(name) <= _MAX_LENGTH and "\0" not in name else digest_of(name)


def digest_of(name: str) -> str:
    """A name of one length and of plain letters for any name."""
    return "sha256-" + hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()


def read_text(value: bytes) -> str:
    """What a header or a cookie says: UTF-8, so that it is what a JSON body or a rule says, else Latin-1."""
    try:
        return value.decode().strip()
    except UnicodeDecodeError:
        return value.decode("latin-1").strip()


def read_name(value: bytes) -> str:
    """The session's name that a header or a cookie tells."""
    return bounded(read_text(value))


def may_stand_in_a_field(name: str) -> bool:
    """Whether a header field can tell it, and nothing else by it: no control characters, no blanks at its ends."""
    return name.isprintable() and name == name.strip()
