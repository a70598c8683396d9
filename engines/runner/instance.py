"""A running instance: handles the host's messages in order, until it stops."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from time import monotonic_ns
from types import FrameType
from typing import Any

from engines.backends.interfaces import Backend, InstanceSpec
from engines.core.errors import EngineError, ErrorCode
from engines.ipc import protocol
from engines.ipc.host_connection import HostConnection
from engines.runner.implicit_state import states_of
from engines.runner.requests import Execution
from engines.runner.signature import Signature

_PAGE_BYTES = resource.getpagesize()
MEMORY_PARAMETER = "MAX_MEMORY_MB"
_NO_TEXT = "<EMPTY MESSAGE>"  # as pybind11 writes it
_OUR_CODE = str(Path(__file__).parents[1])


class RunningInstance:
    """One copy of a model, on one thread."""

    def __init__(self, connection: HostConnection, backend: Backend) -> None:
        self.connection = connection
        self.backend = backend
        self.model = self.name = ""
        self.signature: Any = None
        self.states: Any = None
        self._reports_memory = False

    def start(self, spec: InstanceSpec) -> None:
        """Load the model, and report the result to the host. Raises: HostGoneError, and EngineError if the model does
        not load, after the report."""
        self.model, self.name = spec.model, spec.name
        try:
            self.signature = Signature(spec.config)
            self.states = states_of(spec)
            self._reports_memory = MEMORY_PARAMETER in spec.config.parameters
            self.backend.initialize(spec)
        except BaseException as error:
            failure = as_error(error)
            self.connection.send(protocol.FAILED, failure.code.value, failure.message)
            raise failure from error
        placement = getattr(self.backend, "placement", None)
        self.connection.send(protocol.STARTED, "" if placement is None else json.dumps(placement, default=str))

    def serve(self) -> None:
        """Handle messages until STOP; the model is finalized then. Raises: HostGoneError."""
        connection = self.connection
        while True:
            message = connection.next_work()
            received_ns = monotonic_ns()
            kind = message[0]
            if kind == protocol.EXECUTE:
                Execution(self, message[2]).run(message[3], received_ns)
                del message
                if connection.arrays.has_freed:
                    connection.send(protocol.FREED)
            elif kind == protocol.FORGET:
                self.states.drop(message[2])
            elif kind == protocol.STOP:
                try:
                    self.backend.finalize()
                except BaseException as error:
                    text = f"failed to finalize '{self.name}': {describe_error(error)}"
                    connection.send(protocol.LOG, "error", text, "", 0)
                connection.send(protocol.STOPPED)
                return

    def failure_text(self, error: BaseException) -> str:
        """The error of requests that a failure of the model leaves without a response."""
        return f"Failed to process the request(s) for model '{self.name}', message: {describe_error(error)}"

    def memory_bytes(self) -> int:
        """The resident set of the process if the host has set a limit; else 0."""
        if not self._reports_memory:
            return 0
        if sys.platform == "linux":
            return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def as_error(error: BaseException) -> EngineError:
    """The error of a failed load."""
    return error if isinstance(error, EngineError) else EngineError(ErrorCode.INTERNAL, describe_error(error))


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
