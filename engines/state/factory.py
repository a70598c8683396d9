"""A state store from options and parameters, and the digest of a model's files for its keys."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from engines.core.errors import invalid
from engines.state.interfaces import StateStore
from engines.state.local_store import LocalStateStore
from gateway.redis.address import read_address

LOCAL = "local"
_ENVIRONMENT = "env:"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LEAST_SECRET_BYTES = 16


def open_store(
    url: str, *, secret: bytes | None = None, ttl_seconds: float = 86_400.0, deadline_seconds: float = 0.25
) -> StateStore:
    """Redis by its URL, or `local`: this process. It connects later. Raises: EngineError with the valid forms of the
    URL."""
    if url == LOCAL:
        return LocalStateStore(secret=secret, ttl_seconds=ttl_seconds)
    try:
        address = read_address(url)
    except ValueError as error:
        raise invalid(f"the state store is the URL of a Redis, or '{LOCAL}': {error}") from error
    from engines.state.redis_store import RedisStateStore  # Redis' library takes longer to load than all else

    return RedisStateStore(address, secret=secret, ttl_seconds=ttl_seconds, deadline_seconds=deadline_seconds)


def resolve(text: str) -> str:
    """The URL itself, or for `env:NAME` that of the environment variable ("" if unset): clients can read a model's
    parameters, and a URL may contain a password."""
    return os.environ.get(text.removeprefix(_ENVIRONMENT), "") if text.startswith(_ENVIRONMENT) else text


def read_seconds(text: str) -> float:
    """`90`, `90s`, `15m`, `24h` or `7d`, as seconds. Raises: ValueError with the valid forms."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|[smhd]?)", text.strip().lower())
    seconds = 0.0 if match is None else float(match[1]) * (0.001 if match[2] == "ms" else _UNITS[match[2] or "s"])
    if seconds <= 0:
        raise ValueError("a time above 0, as 500ms, 90s, 15m, 24h or 7d")
    return seconds


def read_secret(path: Path) -> bytes:
    """The secret in a file, stripped. Raises: EngineError if there is none, or it is too short."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise invalid(f"the secret's file {path} cannot be read: {error.strerror}") from error
    if len(secret) < _LEAST_SECRET_BYTES:
        raise invalid(
            f"the secret in {path} has {len(secret)} bytes, and needs {_LEAST_SECRET_BYTES} at least: "
            "head -c 32 /dev/urandom | base64 makes one"
        )
    return secret


# Larger files count by their size and their first and last mebibyte.
_WHOLE_BYTES = 64 << 20
_SAMPLE_BYTES = 1 << 20


def folder_digest(directory: Path) -> str:
    """Hexadecimal sha256 of the names and contents of a directory's files, whatever its place, without Python's
    caches."""
    digest = hashlib.sha256()
    paths = [path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for path in sorted(paths, key=lambda path: path.relative_to(directory).as_posix()):
        name, size = path.relative_to(directory).as_posix().encode(), path.stat().st_size
        digest.update(len(name).to_bytes(4, "big") + name + size.to_bytes(8, "big"))
        with path.open("rb") as file:
            if size <= _WHOLE_BYTES:
                digest.update(hashlib.file_digest(file, "sha256").digest())
                continue
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(size - _SAMPLE_BYTES)
            digest.update(file.read())
    return digest.hexdigest()
