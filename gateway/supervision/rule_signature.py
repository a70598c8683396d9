"""Signs the rules that gateways share by Redis, so that others who write there cannot change rules."""

from __future__ import annotations

import hashlib
import hmac
import stat
from pathlib import Path

from gateway.config.host_access import read_settled

_LEAST_BYTES = 32


class RuleSignature:
    """Signs with a secret that the gateways have, and Redis has not."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, base: str, content: bytes) -> str:
        """The signature of a version instead of the files with this digest."""
        return hmac.new(self._secret, base.encode() + b"\n" + content, hashlib.sha256).hexdigest()

    def is_of(self, signature: bytes, base: str, content: bytes) -> bool:
        return hmac.compare_digest(signature, self.of(base, content).encode())


def read_shared_secret(path: Path) -> bytes:
    """The secret in a file, without white space around it.

    Raises: ValueError.
    """
    try:
        content, mode = read_settled(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    secret = content.strip()
    if len(secret) < _LEAST_BYTES:
        raise ValueError(
            f"{path} has a secret of {len(secret)} bytes; write {_LEAST_BYTES} or more (openssl rand -hex 32)"
        )
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ValueError(f"every user of this host may read or write {path}: chmod o-rw")
    return secret
