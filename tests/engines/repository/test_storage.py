"""Local roots, and remote roots that are copied."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.repository.storage import RemoteRoot, Root, open_root


@pytest.fixture
def store() -> Iterator[tuple[Any, str]]:
    """A file system in memory with a directory for this test."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    place = f"/{uuid.uuid4().hex}/models"
    files.mkdirs(place)
    yield files, place
    files.rm(place, recursive=True)


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() if path.is_file() else "/"
        for path in root.rglob("*")
        if not path.name.startswith(".")
    }


def test_a_remote_root_is_copied(store: tuple[Any, str], tmp_path: Path) -> None:
    """The copy has all files and empty directories, and follows changes and removals."""
    files, place = store
    files.pipe(f"{place}/a/1/model.py", b"one")
    files.pipe(f"{place}/a/config.pbtxt", b"config")
    files.mkdirs(f"{place}/e/1")
    root = open_root(f"memory:/{place}", tmp_path)
    assert isinstance(root, RemoteRoot)
    root.refresh()
    assert tree(root.path) == {
        "a": "/",
        "a/1": "/",
        "a/1/model.py": "one",
        "a/config.pbtxt": "config",
        "e": "/",
        "e/1": "/",
    }
    files.pipe(f"{place}/a/1/model.py", b"two")
    files.rm(f"{place}/a/config.pbtxt")
    files.rm(f"{place}/e", recursive=True)
    root.refresh()
    assert tree(root.path) == {"a": "/", "a/1": "/", "a/1/model.py": "two"}


def test_one_model_is_fetched_alone(store: tuple[Any, str], tmp_path: Path) -> None:
    """For the other models only the names are fetched."""
    files, place = store
    for name in ("a", "b"):
        files.pipe(f"{place}/{name}/1/model.py", name.encode())
    root = RemoteRoot(f"memory:/{place}", tmp_path / "copy")
    root.refresh_names()
    assert tree(root.path) == {"a": "/", "b": "/"}
    root.refresh("b")
    assert tree(root.path) == {"a": "/", "b": "/", "b/1": "/", "b/1/model.py": "b"}
    files.rm(f"{place}/b", recursive=True)
    root.refresh("b")
    assert tree(root.path) == {"a": "/"}


def test_what_has_not_changed_is_not_fetched(store: tuple[Any, str], tmp_path: Path) -> None:
    """An unchanged file is not fetched again, also not by the next host that uses the copy."""
    files, place = store
    files.pipe(f"{place}/a/1/model.py", b"one")
    RemoteRoot(f"memory:/{place}", tmp_path / "copy").refresh()
    before = (tmp_path / "copy" / "a" / "1" / "model.py").stat().st_ino
    RemoteRoot(f"memory:/{place}", tmp_path / "copy").refresh()
    assert (tmp_path / "copy" / "a" / "1" / "model.py").stat().st_ino == before


def test_a_file_that_is_in_use_stays_as_it_was(store: tuple[Any, str], tmp_path: Path) -> None:
    """A new file replaces the old one atomically: an open file keeps its content."""
    files, place = store
    files.pipe(f"{place}/a/weights", b"old")
    root = RemoteRoot(f"memory:/{place}", tmp_path / "copy")
    root.refresh()
    with (root.path / "a" / "weights").open("rb") as in_use:
        files.pipe(f"{place}/a/weights", b"newer")
        root.refresh()
        assert in_use.read() == b"old"
    assert (root.path / "a" / "weights").read_bytes() == b"newer"


def test_a_store_that_does_not_answer(store: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository is unavailable, and the copy stays."""
    files, place = store
    files.pipe(f"{place}/a/x", b"x")
    root = RemoteRoot(f"memory:/{place}", tmp_path / "copy")
    root.refresh()

    def fail(*_: object, **__: object) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr(files, "find", fail)
    with pytest.raises(
        EngineError, match=r"failed to read model repository 'memory:/.*': connection refused"
    ) as caught:
        root.refresh()
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert (root.path / "a" / "x").read_bytes() == b"x"


@pytest.mark.parametrize(
    "url, package", [("s3://bucket/models", "s3fs"), ("gs://bucket/models", "gcsfs"), ("memory://models", "fsspec")]
)
def test_a_missing_library_is_named(url: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs the library."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EngineError) as caught:
        open_root(url, tmp_path)
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert f"needs {package}, which is not installed here: pip install" in caught.value.message


def test_an_unknown_scheme(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(EngineError, match="model repository 'nosuch://x': Protocol not known: nosuch"):
        open_root("nosuch://x", tmp_path)


@pytest.mark.parametrize("given", ["/models", "file:///models", Path("/models")])
def test_a_local_root_is_used_where_it_is(given: str | Path) -> None:
    root = open_root(given)
    assert isinstance(root, Root)
    assert root.path == Path("/models")
