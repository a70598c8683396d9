"""Addresses of endpoints, checked in shape only: whether somebody listens there is health's business."""

from __future__ import annotations

import re

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
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise ValueError(f"{what} is not a host with an optional port")
    port: str | None = found[1]
    if port is not None and not 1 <= int(port) <= 65535:
        raise ValueError(f"{what} has port {port}: 1 to 65535")
    return port
