"""What is wrong with the bodies of control operations, in the words that Triton's REST has of its own.

Source: Triton server `http_server.cc` (HandleLogging, HandleRepositoryControl).
"""

from __future__ import annotations

from typing import Any

from engines.core.errors import internal
from engines.host.rest.triton_json import flag, found, has, members, string, unsigned
from gateway.protocol.operations import Operation

_LOG_SETTINGS = {
    "log_info": flag,
    "log_warning": flag,
    "log_error": flag,
    "log_verbose_level": unsigned,
    "log_format": string,
}


def check_control_body(operation: Operation, content: Any) -> None:
    """Raises: EngineError."""
    if operation is Operation.LOGGING:
        for name, check in _LOG_SETTINGS.items():
            value = found(content, name)
            if value is not None:  # null leaves a setting as it is
                check(value)
    elif operation is Operation.LOAD and has(content, "parameters"):
        for name, value in members(content["parameters"]).items():
            string(value)
            if name != "config" and not name.startswith("file:"):
                raise internal("unexpected error on creating Triton parameter")
