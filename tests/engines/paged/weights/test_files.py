"""The digest of weight files."""

import hashlib
import mmap
import os
from pathlib import Path

import pytest

from engines.paged.weights.files import PART_BYTES, FilesDigest


def test_files_are_read_in_pieces_and_not_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest is sha256 over the sha256 of each piece; the files are not mapped, since CPython's mmap makes macOS
    flush the disk."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file is mapped")

    monkeypatch.setattr(mmap, "mmap", refuse)
    sizes = (PART_BYTES + 4097, 5, 0)
    contents = [os.urandom(size) for size in sizes]
    paths = [tmp_path / str(number) for number in range(len(sizes))]
    wanted = hashlib.sha256()
    for path, data in zip(paths, contents, strict=True):
        path.write_bytes(data)
        wanted.update(len(data).to_bytes(8, "big"))
        for start in range(0, len(data), PART_BYTES):
            wanted.update(hashlib.sha256(data[start : start + PART_BYTES]).digest())
    assert FilesDigest(paths, num_threads=2).result() == wanted.hexdigest()
