"""The host's log: Triton's log settings over Python's logging.

Loggers are `engines` and those below it. The verbose levels of Triton (1 and more) are DEBUG here.
Source: Triton's logging extension; server `src/grpc/grpc_server.cc` RegisterLogging; common `src/logging.cc`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from engines.core.errors import EngineError, ErrorCode, invalid

FORMATS = ("default", "ISO8601")
LOGGER = "engines"

# The field of each setting, and Triton's name of its type. Its "int32" is a uint32_param.
_TYPES = {
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


@dataclass(eq=False)
class LogSettings:
    """The settings in force; `install` applies them to Python's logging."""

    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"
    log_file: str = ""

    def passes(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return self.log_error
        if record.levelno >= logging.WARNING:
            return self.log_warning
        if record.levelno >= logging.INFO:
            return self.log_info
        return self.log_verbose_level > 0

    def update(self, settings: Mapping[str, Any]) -> None:
        """Apply the settings of a LogSettings request, in Triton's order.

        Raises: EngineError; the settings before the invalid one are applied, as by Triton.
        """
        if "log_file" in settings:
            raise EngineError(ErrorCode.UNSUPPORTED, "log file location can not be updated through network protocol")
        for name, (choice, type_name) in _TYPES.items():
            if name not in settings:
                continue
            if settings[name].WhichOneof("parameter_choice") != choice:
                raise invalid(f"expect {type_name} for '{name}'")
            value = getattr(settings[name], choice)
            if name == "log_format" and value not in FORMATS:
                raise invalid(f"invalid argument for log_format, got: {value}")
            setattr(self, name, value)
        self._set_level()

    def write(self, settings: Any) -> None:
        """Set the map of a LogSettingsResponse."""
        settings["log_file"].string_param = self.log_file
        for name, (choice, _) in _TYPES.items():
            setattr(settings[name], choice, getattr(self, name))

    def install(self) -> None:
        """Write the host's log to the file, or to stderr. Raises: OSError where the file cannot be opened."""
        handler: logging.Handler
        handler = logging.FileHandler(self.log_file) if self.log_file else logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Formatter(self))
        handler.addFilter(self.passes)
        logger = logging.getLogger(LOGGER)
        for old in list(logger.handlers):
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.propagate = False
        logging.raiseExceptions = False  # on a full disk a line is lost, without a traceback
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self._set_level()

    def _set_level(self) -> None:
        """Lines below the level are not formatted."""
        logging.getLogger(LOGGER).setLevel(logging.DEBUG if self.log_verbose_level else logging.INFO)


class _Formatter(logging.Formatter):
    """`I1121 17:30:08.330053 21775 server.py:305] "text"`, or the time as ISO 8601."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def format(self, record: logging.LogRecord) -> str:
        letter = "V" if record.levelno < logging.INFO else record.levelname[0]
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        place = f"{os.getpid()} {record.filename}:{record.lineno}]"
        if self._settings.log_format == "ISO8601":
            at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return f"{at} {letter} {place} {text}"
        at = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        return f"{letter}{at}.{int(record.created % 1 * 1e6):06d} {place} {text}"
