"""What tells one set of weights from another: the digest of the files, and of how they are computed with.

The whole content counts, as two fine-tunes may differ in one tensor. Files are hashed in pieces of 64 MiB, several at a
time on threads (hashlib lets go of the interpreter), while the tensors are loaded from the same pages: a core does over
1 GB/s, so that on two a 16 GB model takes some 7 s of the time its conversion takes anyway. They are read, not mapped:
CPython has macOS flush the whole disk for each mapping of a file (F_FULLFSYNC, Modules/mmapmodule.c).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from engines.paged.model.config import DecoderConfig

PIECE_BYTES = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024  # stays in a core's cache between reading and hashing
# Fields that change no number in a cached key or value.
_IRRELEVANT = frozenset({"bos_token_id", "eos_token_ids", "max_positions", "dtype", "quantization"})


class FilesDigest:
    """sha256 over the sha256 of each piece of each file, computed in the background from its making on."""

    def __init__(self, paths: Sequence[Path], num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="weights-digest")
        self._pieces: list[tuple[Path, list[Future[bytes]]]] = [
            (path, [self._pool.submit(_piece, path, at) for at in range(0, path.stat().st_size, PIECE_BYTES)])
            for path in paths
        ]

    def result(self) -> str:
        """Hexadecimal. Waits; the threads end with it."""
        try:
            digest = hashlib.sha256()
            for path, pieces in self._pieces:
                digest.update(path.stat().st_size.to_bytes(8, "big"))
                for piece in pieces:
                    digest.update(piece.result())
            return digest.hexdigest()
        finally:
            self.close()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _piece(path: Path, offset: int) -> bytes:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        left = PIECE_BYTES
        while left and (count := file.readinto(buffer[: min(left, _READ_BYTES)])):
            digest.update(buffer[:count])
            left -= count
    return digest.digest()


def model_fingerprint(files_digest: str, config: DecoderConfig, dtype: str, quantization: str) -> str:
    """What cached keys and values depend on, but for adapters and the cache's own layout: hexadecimal sha256."""
    shape = {name: value for name, value in asdict(config).items() if name not in _IRRELEVANT}
    facts = [files_digest, shape, dtype, quantization]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=sorted).encode()).hexdigest()
