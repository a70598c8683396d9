"""Values that rules alone have: text in, a value out, or a ValueError whose message says what is expected."""

from __future__ import annotations

import re

from gateway.yaml.values import number

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2: a token
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def share(text: str) -> float:
    """A share of the whole: `20%` and `0.2` are the same."""
    return number(text[:-1]) / 100 if text.endswith("%") else number(text)


def weight(text: str) -> float:
    """An arm's weight, relative to the sum of all: `90` and `90%` are the same."""
    value = number(text.removesuffix("%"))
    if value < 0:
        raise ValueError(f"weight {text} is negative: 0 sends no traffic to an arm")
    return value


def text(text: str) -> str:
    """Any text that may stand in a header: not empty, no control characters, Latin-1. It may be a secret, so what is
    wrong with it is told without it."""
    if not text:
        raise ValueError("an empty text stands here")
    if _CONTROL.search(text):
        raise ValueError("the text has control characters (a line break at its end?)")
    try:
        text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text has a character that no header can carry, at place {error.start + 1}") from None
    return text


def header_name(text: str) -> str:
    """A header's name, in lower case."""
    if not _HEADER_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a header name")
    return text.lower()


def base_path(text: str) -> str:
    """Where an API begins at an engine; `/` alone stands for no path at all, which is an empty text."""
    if text == "/":
        return ""
    if path(text).endswith("/"):
        raise ValueError(f"{text!r} ends with '/': did you mean {text.rstrip('/')!r}?")
    if not text.isascii() or "?" in text or "#" in text:
        raise ValueError(f"{text!r} is not a path alone")
    return text


def metrics_path(text: str) -> str:
    """A path, or `:port/path` where metrics have a port of their own on the endpoint's host, as Triton's have."""
    port, slash, rest = text.removeprefix(":").partition("/")
    if not text.startswith(":"):
        return path(text)
    if not (slash and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"{text!r} is not a path with a port: write :8002/metrics")
    return f":{port}{path(slash + rest)}"


def path(text: str) -> str:
    """The path of a URL."""
    if not text.startswith("/") or " " in text or _CONTROL.search(text):
        raise ValueError(f"{text!r} is not a path: it begins with '/' and has no spaces")
    return text
