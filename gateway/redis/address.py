"""The address of Redis: `--redis URL`, parsed and checked before anything connects.

    redis://[user:password@]host[:6379][/db]           one server; rediss:// over TLS
    unix:///path/to/socket[?db=0]                      one server on a Unix socket
    redis+sentinel://host[:26379],host.../service[/db] the master that Sentinels name; rediss+sentinel:// over TLS
    redis+cluster://host[:6379],host...                a cluster; rediss+cluster:// over TLS

A query adds `ca`, `cert`, `key` (PEM files), `verify=no`, and for Sentinels that want their own `sentinel_user` and
`sentinel_password`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from gateway.redis.command import KEY_PREFIX

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PORT = 6379
_SENTINEL_PORT = 26379
_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_ENCODE = "in a user or a password /, ?, #, [, ] and @ are written as %2F, %3F, %23, %5B, %5D and %40"
_FIELDS = ("ca", "cert", "db", "key", "sentinel_password", "sentinel_user", "verify")


class RedisTopology(Enum):
    """One server, a master found through Sentinels, or a cluster."""

    ONE = "one"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class RedisTls:
    """TLS to Redis: PEM files; None: the system's authorities, and no client certificate."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One Redis, however many servers it has. `hosts` are (name, port), of a cluster or of Sentinels those asked first;
    empty where `socket` is the path of a Unix socket."""

    hosts: tuple[tuple[str, int], ...] = ()
    socket: str | None = None
    layout: RedisTopology = RedisTopology.ONE
    service: str = ""  # the name that Sentinels know the master by
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)  # secrets, so no repr shows them
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: RedisTls | None = None
    prefix: str = KEY_PREFIX  # of the gateway's keys: `--redis-prefix`

    def __str__(self) -> str:
        """The URL without secrets, for logs and errors."""
        if self.socket is not None:
            return f"unix://{self.socket}"
        kind = "" if self.layout is RedisTopology.ONE else f"+{self.layout.value}"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        path = f"/{self.service}" if self.service else ""
        return f"redis{'s' if self.tls else ''}{kind}://{hosts}{path}" + (f"/{self.db}" if self.db else "")


def read_address(url: str) -> RedisAddress:
    """Parse a URL.

    Raises: ValueError, whose message names the cure and repeats no password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ValueError(f"a Redis URL begins with one of {', '.join(f'{known}://' for known in _SCHEMES)}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(f"the URL cannot be read; {_ENCODE}") from None
    if "@" in parts.path + parts.query + parts.fragment:  # nothing of it may be repeated
        raise ValueError(f"the URL has an @ behind its host; {_ENCODE}")
    query = _query(parts.query)
    secure = scheme.startswith("rediss")
    tls = RedisTls(query.get("ca"), query.get("cert"), query.get("key"), _verify(query.get("verify", "yes")))
    if not secure and tls != RedisTls():
        raise ValueError(f"ca, cert, key and verify are of TLS: {scheme}:// has none, redis{'s' + scheme[5:]}:// has")
    if tls.key is not None and tls.cert is None:
        raise ValueError("key names the key of a certificate: give cert too")
    login, _, places = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    known = {
        "user": unquote(user) or None,
        "password": unquote(password) or None,
        "tls": tls if secure else None,
    }
    path = parts.path.strip("/")
    if scheme == "unix":
        if not parts.path.startswith("/") or places:
            raise ValueError("a Unix socket's URL has an absolute path: unix:///path/to/socket")
        return RedisAddress(socket=unquote(parts.path), db=_db(query.get("db", "0")), **known)  # type: ignore[arg-type]
    layout = RedisTopology(scheme.partition("+")[2] or "one")
    hosts = _hosts(places, _SENTINEL_PORT if layout is RedisTopology.SENTINEL else _PORT)
    service = ""
    if layout is RedisTopology.SENTINEL:
        service, _, path = path.partition("/")
        if not service:
            raise ValueError(f"Sentinels know the master by a name: {scheme}://host,host/NAME")
        known["sentinel_user"] = query.get("sentinel_user")
        known["sentinel_password"] = query.get("sentinel_password")
    elif layout is RedisTopology.ONE and len(hosts) > 1:
        raise ValueError(f"several hosts need redis+sentinel:// or redis+cluster://, {scheme}:// has one")
    db = _db(path or query.get("db", "0"))
    if db and layout is RedisTopology.CLUSTER:
        raise ValueError("a cluster has one database, number 0")
    return RedisAddress(hosts, None, layout, service, db, **known)  # type: ignore[arg-type]


def check_prefix(text: str) -> str:
    """Returns the text. Raises: ValueError where it cannot begin keys."""
    if not _PREFIX.fullmatch(text):
        raise ValueError(f"a prefix has letters, digits, '.', '_' and '-', 64 at most, not {text!r}")
    return text


def _query(text: str) -> dict[str, str]:
    query = dict(parse_qsl(text, keep_blank_values=True))
    for name in query:
        if name not in _FIELDS:
            raise ValueError(f"a Redis URL's query knows {', '.join(_FIELDS)}, not {name!r}")
    for name in ("ca", "cert", "key"):
        if name in query and not Path(query[name]).is_file():
            raise ValueError(f"{name} names {query[name]}, which is no file")
    return query


def _verify(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"verify is yes or no, not {text!r}")
    return text == "yes"


def _db(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"the database is a number, not {text!r}")
    return int(text)


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    found = []
    for place in text.split(",") if text else ():
        host, separator, digits = place.rpartition(":")
        if not separator or place.endswith("]"):
            host, digits = place, str(port)
        if not host or not digits.isdecimal() or not 0 < int(digits) < 65536:
            raise ValueError(f"{place!r} is no host and port")
        found.append((host.strip("[]"), int(digits)))
    if not found:
        raise ValueError("the URL names no host")
    return tuple(found)
