"""What our own code logs in an instance's process: told to the host, whose log it belongs in."""

from __future__ import annotations

import contextlib
import logging

from engines.ipc import message_kinds
from engines.runner.connection import HostConnection, HostGoneError

LOGGER = "engines"


class HostHandler(logging.Handler):
    """Sends each line over one connection of the process."""

    def __init__(self, connection: HostConnection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else record.levelname.lower()
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with contextlib.suppress(HostGoneError):
            self._connection.send(message_kinds.LOG, level, text, record.filename, record.lineno)


def log_to_host(connection: HostConnection) -> None:
    """Have what is logged below `engines` in this process go there, from INFO on."""
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(HostHandler(connection))
    logger.propagate = False
