"""A folder's safetensors files: their tensors by name, mapped into memory, and a digest of their content.

The digest covers the whole content, as two fine-tunes may differ in one tensor. Files are hashed in parts of 64 MiB on
several threads (hashlib releases the interpreter's lock) while the tensors are loaded from the same pages: a core
hashes over 1 GB/s, so that on two cores a 16 GB model takes some 7 s of the time that its conversion takes anyway.
Files are read for it, not mapped: CPython on macOS flushes the whole disk for each mapping of a file (F_FULLFSYNC,
Modules/mmapmodule.c).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engines.core.errors import EngineError, invalid
from engines.paged.model.config import DecoderConfig

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class TensorFiles:
    """Tensors by name. `read` returns the file's pages: nothing is copied before it is computed with.

    Raises: EngineError that names the file: none there, one of the index missing, a truncated or invalid file, a tensor
    in two files.
    """

    def __init__(self, directory: Path) -> None:
        self.paths = _paths(directory)
        self._opened = [_open(path) for path in self.paths]
        self._at: dict[str, int] = {}
        for at, opened in enumerate(self._opened):
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                if name in self._at:
                    raise invalid(f"{self.paths[at]}: {name} is in {self.paths[self._at[name]].name} too")
                self._at[name] = at

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """The file's name of it: F32, BF16, U32 ..."""
        dtype: str = self._slice(name).get_dtype()
        return dtype

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._opened[self._at[name]].get_tensor(name)
        return tensor

    def wrong(self, name: str, problem: str) -> EngineError:
        return invalid(f"{self.paths[self._at[name]]}: {name}: {problem}")

    def _slice(self, name: str) -> Any:
        return self._opened[self._at[name]].get_slice(name)


def _paths(directory: Path) -> list[Path]:
    """1. the files of the index;  2. model.safetensors;  3. all there are, as tools without an index write them."""
    if not directory.is_dir():
        raise invalid(f"{directory} is no folder: a model is a folder with config.json and safetensors files")
    index = directory / INDEX
    if index.is_file():
        return _indexed(index)
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    paths = sorted(path for path in directory.glob("*.safetensors") if not path.name.startswith("adapter"))
    if not paths:
        others = [path.name for path in directory.glob("*.bin")] + [path.name for path in directory.glob("*.gguf")]
        hint = f"; {', '.join(sorted(others))} cannot be read" if others else ""
        raise invalid(f"{directory}: no safetensors files{hint}")
    return paths


def _indexed(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid(f"{index}: no weight_map of tensors to files in it: {error!r}") from error
    paths = [index.parent / str(name) for name in names]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise invalid(f"{index}: {', '.join(missing)} of {len(paths)} files is not there: is the download complete?")
    return paths


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise invalid(f"{path}: {error}: is the download complete?") from error


PART_BYTES = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024  # stays in a core's cache between reading and hashing
# Fields that change no cached key or value.
_IRRELEVANT = frozenset({"eos_token_ids", "max_positions", "dtype", "quantization"})


class FilesDigest:
    """sha256 over the sha256 of each part of each file, computed in the background from its creation on."""

    def __init__(self, paths: Sequence[Path], num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="weights-digest")
        self._parts: list[tuple[Path, list[Future[bytes]]]] = [
            (path, [self._pool.submit(_part_digest, path, at) for at in range(0, path.stat().st_size, PART_BYTES)])
            for path in paths
        ]

    def result(self) -> str:
        """Hexadecimal. Waits for the threads, and ends them."""
        try:
            digest = hashlib.sha256()
            for path, parts in self._parts:
                digest.update(path.stat().st_size.to_bytes(8, "big"))
                for part in parts:
                    digest.update(part.result())
            return digest.hexdigest()
        finally:
            self.close()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _part_digest(path: Path, offset: int) -> bytes:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        remaining = PART_BYTES
        while remaining and (count := file.readinto(buffer[: min(remaining, _READ_BYTES)])):
            digest.update(buffer[:count])
            remaining -= count
    return digest.digest()


def model_fingerprint(files_digest: str, config: DecoderConfig, dtype: str, quantization: str) -> str:
    """What cached keys and values depend on, except adapters and the cache's layout: hexadecimal sha256."""
    shape = {name: value for name, value in asdict(config).items() if name not in _IRRELEVANT}
    facts = [files_digest, shape, dtype, quantization]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=sorted).encode()).hexdigest()
