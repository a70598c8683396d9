"""Parsers of values that only rules have: text in, a value out, or a ValueError that describes what is expected."""

from __future__ import annotations

import re

from gateway.yaml.values import number

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?")
_SCHEMES = ("http", "https", "grpc", "grpcs")


def endpoint_url(text: str) -> str:
    """`http://host[:port]` or `https://host[:port]`, or `grpc://host:port` or `grpcs://host:port` for a server without
    REST; one trailing slash is dropped."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError(f"URL {text!r} has no scheme: did you mean 'http://{text}'?")
    if scheme not in _SCHEMES:
        raise ValueError(f"URL {text!r} must begin with http://, https://, grpc:// or grpcs://")
    authority, _, path = rest.partition("/")
    if path:
        meant = f"did you mean '{scheme}://{authority}'?"
        if scheme.startswith("http"):
            meant = f"{meant} Of an openai engine, write 'base_path: /{path.rstrip('/')}' beside it"
        raise ValueError(f"URL {text!r} has a path: {meant}")
    port = _check_authority(authority, f"URL {text!r}")
    if scheme.startswith("grpc") and not port:
        raise ValueError(f"URL {text!r} has no port: gRPC has no usual one")
    return f"{scheme}://{authority}"


def host_port(text: str) -> str:
    """`host:port`, as gRPC clients write it."""
    if "://" in text:
        bare = text.partition("://")[2]
        raise ValueError(f"address {text!r} has a scheme: did you mean {bare!r}?")
    if not _check_authority(text, f"address {text!r}"):
        raise ValueError(f"address {text!r} has no port: write host:port")
    return text


def _check_authority(authority: str, what: str) -> str | None:
    """The port's digits, None where there is no port."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise ValueError(f"{what} is not a host with an optional port")
    port: str | None = match[1]
    if port is not None and not 1 <= int(port) <= 65535:
        raise ValueError(f"{what} has port {port}: 1 to 65535")
    return port


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
    """A header value: not empty, no control characters, Latin-1. It may be a secret, so errors do not quote it."""
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
    """The base path of an engine's API; `/` means none."""
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
