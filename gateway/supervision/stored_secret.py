"""Secrets that a gateway makes for itself, in files of its data folder, so that they outlive it."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger("pointsman")

_BYTES = 32


class StoredSecret:
    """A secret in a folder; without one, or where it cannot be written, one of this process."""

    def __init__(self, folder: Path | None, name: str, loss: str) -> None:
        """`loss` is what a restart costs where the file cannot be written, for the log."""
        self._path = folder / name if folder is not None else None
        self._loss = loss
        self._secret: bytes | None = None

    def stored(self) -> bytes | None:
        """The secret, where it was needed before."""
        if self._secret is None and self._path is not None:
            with suppress(OSError):
                secret = self._path.read_bytes()
                self._secret = secret if len(secret) == _BYTES else None
        return self._secret

    def __call__(self) -> bytes:
        """The secret, made where there is none."""
        secret = self.stored()
        if secret is None:
            secret = self._secret = secrets.token_bytes(_BYTES)
            self._store(secret)
        return secret

    def _store(self, secret: bytes) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(descriptor, secret)
            finally:
                os.close(descriptor)
            partial.rename(self._path)
        except OSError as error:
            _log.warning("after a restart, %s: cannot write %s: %s", self._loss, self._path, error)


def region_secret(folder: Path | None) -> StoredSecret:
    """That of the names of shared memory regions at engines, which keep regions while a gateway restarts."""
    return StoredSecret(folder, "shared_memory_secret", "clients must register shared memory again")


def digest_secret(folder: Path | None) -> StoredSecret:
    """That of the digests that stand for sessions."""
    return StoredSecret(folder, "digest_secret", "other digests stand for sessions")
