"""Endpoints in a file, which is read when it changes."""

from __future__ import annotations

from pathlib import Path

from gateway.config.host_access import read_settled
from gateway.config.source_specs import SourceSpec
from gateway.discovery.endpoint_list import MAX_BYTES, read_endpoints
from gateway.discovery.source_state import FoundEndpoint, SourceError


class EndpointFile:
    """The file of one source."""

    def __init__(self, source: SourceSpec) -> None:
        assert source.file is not None
        self._source = source
        self._path = Path(source.file)
        self._stamp: tuple[int, ...] | None = None
        self._problem: SourceError | None = None  # of the file with this stamp

    def read_changed(self) -> list[FoundEndpoint] | None:
        """Its endpoints; None where it has not changed since the last good reading.

        Raises: SourceError.
        """
        try:
            found = self._path.stat()
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if stamp == self._stamp:
                if self._problem is not None:
                    raise self._problem
                return None
            content, _ = read_settled(self._path, MAX_BYTES + 1)
        except OSError as error:
            self._stamp = None
            raise SourceError(f"it cannot be read: {error.strerror}") from None
        self._stamp, self._problem = stamp, None
        try:
            return read_endpoints(content, self._source)
        except SourceError as error:
            self._problem = SourceError(str(error))
            raise
