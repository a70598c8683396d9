"""Logs and tracebacks of an instance's process: the lines of the `engines` logger go to the host's log, a model's error
with the lines of its code."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from types import FrameType

from engines.ipc import protocol
from engines.ipc.host_connection import HostConnection, HostGoneError

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
            self._connection.send(protocol.LOG, level, text, record.filename, record.lineno)


def log_to_host(connection: HostConnection) -> None:
    """Send the `engines` logger's lines from INFO on to the host."""
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(HostHandler(connection))
    logger.propagate = False


_NO_TEXT = "<EMPTY MESSAGE>"  # as pybind11 writes it
_OUR_CODE = str(Path(__file__).parents[1])


def describe_error(error: BaseException) -> str:
    """`ValueError: boom`, and the lines of the model's code that led there."""
    text = f"{type(error).__name__}: {str(error) or _NO_TEXT}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame if trace is not None else None
    lines: list[str] = []
    while frame is not None and _is_ours(frame):  # frames of this package that the model has called
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        lines.append(f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n")
        frame = frame.f_back
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((_OUR_CODE, "<frozen runpy>"))
