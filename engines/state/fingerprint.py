"""What tells one model's files from another's, for keys of their states."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Files of so many bytes are read whole; of larger ones the first and the last mebibyte count, and the size.
_WHOLE_BYTES = 64 << 20
_SAMPLE_BYTES = 1 << 20


def folder_digest(directory: Path) -> str:
    """Hexadecimal sha256 over names and contents of the files below, wherever the folder lies. What Python leaves there
    does not count."""
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
