"""The keys file in use, read again whenever it changes: a key removed from it is refused at once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from pathlib import Path
from time import monotonic

from gateway.admin.api_keys import Caller, KeyEntry, KeysError, id_of, read_keys

_log = logging.getLogger("pointsman")

# A wrong key costs its sender a token; tokens return one by one.
_MAX_WRONG = 10
_SECONDS_A_TOKEN = 6.0
_MAX_PEERS = 1000
# Concurrent hashes: each takes 16 MiB and a core.
_MAX_HASHING = 2


class TooManyAttemptsError(Exception):
    """A peer has tried too many wrong keys; it may try again in `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many wrong keys from this address: try again in {seconds:.0f} s")
        self.seconds = seconds


class Attempts:
    """Wrong keys by sender's address and guessed entry, the least recent forgotten first. A page that is left open with
    a removed key guesses at no entry, so it blocks no entry's owner."""

    def __init__(self) -> None:
        self._spent: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()  # tokens spent, at a time

    def check(self, peer: str, id: str, now: float) -> None:
        """Raises: TooManyAttemptsError."""
        spent = self._spent_by((peer, id), now)
        if spent > _MAX_WRONG - 1:
            raise TooManyAttemptsError((spent - _MAX_WRONG + 1) * _SECONDS_A_TOKEN)

    def count(self, peer: str, id: str, now: float) -> None:
        """Count a wrong key; `id` is the entry's, empty where there is none."""
        self._spent[peer, id] = self._spent_by((peer, id), now) + 1, now
        self._spent.move_to_end((peer, id))
        if len(self._spent) > _MAX_PEERS:
            self._spent.popitem(last=False)

    def _spent_by(self, guess: tuple[str, str], now: float) -> float:
        spent, since = self._spent.get(guess, (0.0, now))
        return max(0.0, spent - (now - since) / _SECONDS_A_TOKEN)


class Keyring:
    """The keys of one file. A file that is missing or has errors admits no caller until it is fixed."""

    def __init__(self, path: Path) -> None:
        """Raises: KeysError."""
        self._path = path
        self._seen = self._look()
        self._entries = read_keys(path)
        self._proven: dict[bytes, KeyEntry] = {}  # by the key's sha256: a key is hashed once
        self._attempts = Attempts()
        self._hashing = asyncio.Semaphore(_MAX_HASHING)
        self._problem: KeysError | None = None

    async def caller(self, key: str, peer: str) -> Caller | None:
        """The key's owner; None where it is unknown.

        Raises: KeysError where the file cannot be used; TooManyAttemptsError.
        """
        self.refresh()
        if self._problem is not None:
            raise KeysError(str(self._problem))  # one that is kept would keep the frames of all calls
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        entry = self._proven.get(digest)
        if entry is not None:
            return _caller(entry)
        entry = self._entries.get(id_of(key) or "")
        id = entry.id if entry is not None else ""
        self._attempts.check(peer, id, monotonic())
        if entry is not None:
            async with self._hashing:
                is_right = await asyncio.to_thread(entry.hash.matches, key)
            if is_right and self._entries.get(entry.id) is entry:  # it may have been removed meanwhile
                self._proven[digest] = entry
                return _caller(entry)
        self._attempts.count(peer, id, monotonic())
        _log.warning("a wrong key of the admin API came from %s", peer)
        return None

    def holds(self, caller: Caller) -> bool:
        """Whether the caller's key is still in the file, with the same role."""
        self.refresh()
        entry = self._entries.get(caller.id)
        return self._problem is None and entry is not None and _caller(entry) == caller

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        before = self._entries
        try:
            self._entries, self._problem = read_keys(self._path), None
        except KeysError as error:
            self._entries, self._problem = {}, error
            _log.error("%s", error)
            _log.error("no key opens the admin API until its keys file is fixed")
        self._proven = {
            digest: self._entries[entry.id]
            for digest, entry in self._proven.items()
            if entry.id in self._entries and self._entries[entry.id].hash == entry.hash
        }
        if self._problem is None and before != self._entries:
            _log.info("the keys of the admin API have changed; there are %d", len(self._entries))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def _caller(entry: KeyEntry) -> Caller:
    return Caller(entry.name, entry.role, entry.id, entry.expires, entry.scope)
