"""The options of TLS listeners, read into their settings."""

from __future__ import annotations

from pathlib import Path

import typer

from gateway.net.listener_tls import CLIENT_AUTH, TLS_VERSIONS, ListenerTls

# Those of the inference ports, as `tls_of` takes them, without `--tls-`.
TLS_OPTIONS = ("cert", "key", "client_ca", "min_version", "ciphers", "client_auth")
_NO_CLIENT_AUTH = "none"


def tls_version(value: str) -> str:
    """Raises: typer.BadParameter."""
    if value not in TLS_VERSIONS:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(TLS_VERSIONS)}")
    return value


def client_auth(value: str) -> str:
    """Raises: typer.BadParameter."""
    if value not in (_NO_CLIENT_AUTH, *CLIENT_AUTH):
        raise typer.BadParameter(f"{value!r} is not one of {_NO_CLIENT_AUTH}, {', '.join(CLIENT_AUTH)}")
    return value


def tls_of(
    certs: list[Path],
    keys: list[Path],
    client_ca: Path | None,
    min_version: str,
    ciphers: str | None,
    mode: str | None,
) -> ListenerTls | None:
    """TLS of the inference ports; None without it. Raises: typer.BadParameter."""
    if len(certs) != len(keys):
        raise typer.BadParameter("each --tls-cert needs its --tls-key, and no other")
    if certs:
        if client_ca is None and mode in CLIENT_AUTH:
            raise typer.BadParameter(f"--tls-client-auth {mode} needs --tls-client-ca")
        pairs = tuple(map(str, certs)), tuple(map(str, keys))
        if client_ca is None or mode == _NO_CLIENT_AUTH:
            return ListenerTls(*pairs, None, min_version, ciphers)
        return ListenerTls(*pairs, str(client_ca), min_version, ciphers, mode or "required")
    if client_ca is not None or mode is not None or ciphers is not None:
        raise typer.BadParameter("TLS needs --tls-cert and --tls-key")
    return None


def admin_tls_of(cert: Path | None, key: Path | None, client_ca: Path | None) -> ListenerTls | None:
    """TLS of the admin port; None without it. Raises: typer.BadParameter."""
    if cert is not None and key is not None:
        ca = str(client_ca) if client_ca is not None else None
        return ListenerTls((str(cert),), (str(key),), ca, options="--admin-tls")
    if cert is not None or key is not None or client_ca is not None:
        raise typer.BadParameter("TLS on the admin port needs both --admin-tls-cert and --admin-tls-key")
    return None
