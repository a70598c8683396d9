"""The log: a line an event, to stderr."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import orjson

# Libraries that tell of every request at a level that is meant for them alone.
_NOISY = ("httpx", "httpcore", "uvicorn", "uvicorn.error", "asyncio")

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


# A message may hold what a caller has written: further lines are indented, so that none looks like another message,
# and what a terminal would obey is spelt.
_SPELT = {code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0))} | {9: "\t", 10: "\n    "}


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name for it
        return super().formatMessage(record).translate(_SPELT)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(told).decode()


def set_up_logging(log_format: str) -> None:
    """Log to stderr as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    text = _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def set_log_level(level: str) -> None:
    """Log from this level on: one of LEVELS."""
    logging.getLogger().setLevel(LEVELS[level])


def log_level() -> str:
    """The level from which on this process logs."""
    number = logging.getLogger().getEffectiveLevel()
    return next((name for name, known in LEVELS.items() if known >= number), "error")
