"""The log: one line per event, to stderr."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import orjson

# Libraries that log every request.
_NOISY = ("httpx", "httpcore", "uvicorn", "uvicorn.error", "asyncio")

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


# A message may contain text of a caller: further lines are indented, so that none looks like another message, and
# control characters are escaped.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0))} | {9: "\t", 10: "\n    "}


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name for it
        return super().formatMessage(record).translate(_ESCAPES)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(fields).decode()


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
    number = logging.getLogger().getEffectiveLevel()
    return next((name for name, known in LEVELS.items() if known >= number), "error")
