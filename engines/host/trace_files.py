"""Files of traces, as Triton writes them: one array of records a file.

Source: Triton server `src/tracer.cc` TraceFile.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

_log = logging.getLogger(__name__)

Records = Sequence[dict[str, Any]]


class TraceFiles:
    """What this host has written; a file that another has left is begun anew."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._next: dict[str, int] = {}

    def append(self, path: str, records: Records) -> None:
        """Add to a file. It is a whole JSON array after each time."""
        try:
            if path in self._begun:
                with Path(path).open("r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    file.write(b"," + orjson.dumps(records)[1:])
            else:
                Path(path).write_bytes(orjson.dumps(records))
                self._begun.add(path)
        except OSError as error:
            _log.error("failed creating trace file: %s", error)

    def write_numbered(self, path: str, records: Records) -> None:
        """Write a file of its own: `path` with the next number behind it, from 0 on."""
        number = self._next.get(path, 0)
        self._next[path] = number + 1
        self.append(f"{path}.{number}", records)
