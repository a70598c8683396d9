"""What a session is called: a text of its client's choosing, wherever it stands in a request."""

from __future__ import annotations

import hashlib

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
