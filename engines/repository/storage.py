"""A repository's roots: a directory here, or an address such as s3://bucket/models that is copied here first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from engines.core.errors import EngineError, ErrorCode, unavailable

EXTRA = "pointsman[remote]"
# The packages of fsspec's drivers by scheme.
DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
MANIFEST = ".pointsman-manifest.json"
PARTIAL = ".fetch-"
# Fields of a listing that change with a file; they depend on the store.
MARKS = (
    *("size", "ETag", "etag", "md5Hash", "generation", "mtime"),
    *("LastModified", "last_modified", "updated", "created"),
)


class Root:
    """`path` is the directory in which the models lie."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refresh(self, model: str = "") -> None:
        """Bring it up to date, or one model of it. Raises: EngineError."""

    def refresh_names(self) -> None:
        """Create a directory for each listed model, with or without its files. Raises: EngineError."""


class RemoteRoot(Root):
    """A copy of `url` in `directory`. A new file replaces the old one, which stays open where it is used."""

    def __init__(self, url: str, directory: Path) -> None:
        """Raises: EngineError if fsspec or its driver is missing."""
        super().__init__(directory)
        self.url = url
        directory.mkdir(parents=True, exist_ok=True)
        self._files, self._root = _open(url)
        try:
            manifest = json.loads((directory / MANIFEST).read_text())
        except (OSError, ValueError):
            manifest = {}
        self._manifest: dict[str, str] = manifest if isinstance(manifest, dict) else {}

    def refresh(self, model: str = "") -> None:
        """Fetch changed files, and delete removed ones. Raises: EngineError(UNAVAILABLE) if the store does not
        respond."""
        with self._translated():
            listing = self._list(model)
            for name, mark in listing.items():
                self._fetch(name, mark)
        self._remove_others(model, listing)
        (self.path / MANIFEST).write_text(json.dumps(self._manifest))

    def refresh_names(self) -> None:
        """Raises: EngineError(UNAVAILABLE) if the store does not respond."""
        with self._translated():
            self._files.invalidate_cache()
            entries = self._files.ls(self._root, detail=True)
        for details in entries:
            if details["type"] == "directory":
                (self.path / PurePosixPath(details["name"].rstrip("/")).name).mkdir(exist_ok=True)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store has its own errors
            raise unavailable(f"failed to read model repository '{self.url}': {error}") from error

    def _list(self, model: str) -> dict[str, str | None]:
        """Each file's mark by its path under the root; a directory has none."""
        top = f"{self._root}/{model}" if model else self._root
        self._files.invalidate_cache()
        try:
            entries = self._files.find(top, withdirs=True, detail=True)
        except FileNotFoundError:
            return {}
        listing: dict[str, str | None] = {}
        for path, details in entries.items():
            name = PurePosixPath(path.strip("/")).relative_to(self._root.strip("/"))
            if name.parts and ".." not in name.parts:
                listing[str(name)] = None if details["type"] == "directory" or path.endswith("/") else _mark(details)
        return listing

    def _fetch(self, name: str, mark: str | None) -> None:
        target = self.path / name
        if mark is None:
            target.mkdir(parents=True, exist_ok=True)
            return
        if self._manifest.get(name) == mark and target.is_file():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path / f"{PARTIAL}{os.getpid()}"
        try:
            self._files.get_file(f"{self._root}/{name}", str(partial))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        self._manifest[name] = mark

    def _remove_others(self, model: str, listing: dict[str, str | None]) -> None:
        top = self.path / model if model else self.path
        there = {str(parent) for name in listing for parent in PurePosixPath(name).parents} | listing.keys()
        for directory, directories, files in os.walk(top, topdown=False):
            for entry in (*directories, *files):
                path = Path(directory) / entry
                name = str(path.relative_to(self.path))
                is_ours = name == MANIFEST or name.startswith(PARTIAL) or "__pycache__" in path.parts
                if name not in there and not is_ours:
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                    self._manifest.pop(name, None)
        if model and model not in there and top.is_dir():
            shutil.rmtree(top)


def open_root(root: str | Path, cache_directory: Path | None = None) -> Root:
    """A root by its address: a directory, `file://` and a directory, or a remote URL with a copy in `cache_directory`
    (by default ~/.cache/pointsman/repositories). Raises: EngineError if a package is not installed."""
    text = str(root)
    if isinstance(root, Path) or "://" not in text:
        return Root(Path(root))
    if text.startswith("file://"):
        return Root(Path(text.removeprefix("file://")))
    where = cache_directory or Path.home() / ".cache" / "pointsman" / "repositories"
    return RemoteRoot(text.rstrip("/"), where / hashlib.sha256(text.rstrip("/").encode()).hexdigest()[:16])


def _open(url: str) -> tuple[Any, str]:
    """The file system of an address, and the path there."""
    scheme = url.partition("://")[0]
    try:
        files, path = import_module("fsspec.core").url_to_fs(url)
    except ImportError as error:
        is_fsspec = (error.name or "").startswith("fsspec")
        package = "fsspec" if is_fsspec else DRIVERS.get(scheme, f"fsspec's driver for {scheme}")
        raise EngineError(
            ErrorCode.UNSUPPORTED,
            f"model repository '{url}' needs {package}, which is not installed here: pip install \"{EXTRA}\"",
        ) from error
    except ValueError as error:
        raise EngineError(ErrorCode.UNSUPPORTED, f"model repository '{url}': {error}") from error
    return files, str(path).rstrip("/")


def _mark(details: dict[str, Any]) -> str:
    return " ".join(f"{mark}={details[mark]}" for mark in MARKS if details.get(mark) is not None)
