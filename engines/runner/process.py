"""The process of a model's instances: imports the backend, completes the configuration, has a thread for each."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from engines.backends.interfaces import InstanceSpec
from engines.core.errors import EngineError, ErrorCode
from engines.ipc import protocol
from engines.ipc.arena import Arena, Mapping
from engines.ipc.arrays import ArrayStore
from engines.ipc.host_connection import HostClient, HostConnection, HostGoneError
from engines.runner.instance import RunningInstance, as_error
from gateway.protocol import protobuf

_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10  # of fcntl(2): the signal of a descriptor with O_ASYNC
# The time of a process to end after its model is finalized.
LAST_SECONDS = 5.0
# Of an instance: the pipes from the host and to it, the arena that it reads, the arena that it writes.
Descriptors = Sequence[int]
# The logger whose lines go to the host.
LOGGER = "engines"


def run(lifeline: int, limit_bytes: int, descriptors: Sequence[Descriptors]) -> int:
    """Serve on these channels until the host stops the process; the exit code. `lifeline` is a pipe that closes when
    the host ends."""
    live_and_die_with_the_host(lifeline)
    connections = [open_connection(each, limit_bytes) for each in descriptors]
    try:
        exit_code = serve(connections)
    except HostGoneError:
        end(1)
    # Threads that the model has left behind hold the end up, but not for ever.
    late = threading.Timer(LAST_SECONDS, end, (exit_code,))
    late.daemon = True
    late.start()
    return exit_code


def end(exit_code: int) -> NoReturn:
    """End now, regardless of the model's threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code)


def live_and_die_with_the_host(lifeline: int) -> None:
    """Ctrl-C in a terminal is the host's to handle, and without a host there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    has_group = os.getpgrp() == os.getpid()
    if sys.platform == "linux" and not (has_group and _is_group_killed_at_end(lifeline)):
        # Works while the model holds the interpreter's lock, but spares the model's own children.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        if has_group:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _is_group_killed_at_end(lifeline: int) -> bool:
    """Have Linux kill the process group when the lifeline closes; whether it will. That works while the model holds the
    interpreter's lock, and after it has closed the descriptor, which a thread still reads."""
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return False
    return True


def open_connection(descriptors: Descriptors, limit_bytes: int) -> HostConnection:
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # the model's children must not hold the channel open
    incoming, outgoing, received, sent = descriptors
    return HostConnection(incoming, outgoing, ArrayStore(Arena(sent, limit_bytes), Mapping(received)))


def serve(connections: list[HostConnection]) -> int:
    first = connections[0]
    log_to_host(first)
    fields = first.next_work()[2]
    try:
        module = import_backend(fields["backend"])
        config = protobuf.message("inference.ModelConfig").FromString(fields["config"])
        if fields["completes"]:
            if hasattr(module, "complete_version"):
                module.complete_version(config, Path(fields["version_directory"]))
            else:
                module.complete(config, Path(fields["directory"]), fields["options"])
    except BaseException as error:
        failure = as_error(error)
        first.send(protocol.FAILED, failure.code.value, failure.message)
        return 1
    shares = bool(getattr(module, "INSTANCES_SHARE_A_PROCESS", False))
    first.send(protocol.LOADED, config.SerializeToString(), shares)
    used = connections if shares else connections[:1]
    del connections
    exit_codes: list[int] = []
    threads = [
        threading.Thread(target=lambda each: exit_codes.append(serve_one(module, each, fields, config)), args=(each,))
        for each in used[1:]
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    exit_codes.append(serve_one(module, first, fields, config))
    for thread in threads:
        thread.join()
    return max(exit_codes)


def import_backend(name: str) -> Any:
    """Import the module of a backend. Raises: EngineError if there is no such backend; whatever the import raises."""
    qualified = f"engines.backends.{name}"
    try:
        module = importlib.import_module(qualified) if name.isidentifier() else None
    except ModuleNotFoundError as error:
        if error.name != qualified:
            raise
        module = None
    if module is None or not hasattr(module, "create"):
        raise EngineError(
            ErrorCode.INVALID_ARG, f"unable to find backend '{name}' for the model: the host has no such backend"
        )
    return module


def serve_one(module: Any, connection: HostConnection, fields: dict[str, Any], config: Any) -> int:
    try:
        message = connection.next_work()
        if message[0] == protocol.STOP:
            connection.send(protocol.STOPPED)
            return 0
        _, _, name, kind, device_id = message
        backend = module.create()
        if hasattr(backend, "attach"):
            backend.attach(HostClient(connection))
        instance = RunningInstance(connection, backend)
        instance.start(
            InstanceSpec(
                name=name,
                model=fields["model"],
                version=fields["version"],
                directory=Path(fields["directory"]),
                version_directory=Path(fields["version_directory"]),
                config=config,
                kind=kind,
                device_id=device_id,
                host_options=fields["options"],
            )
        )
        instance.serve()
    except EngineError:
        return 1  # already reported
    except HostGoneError:
        end(1)  # and the process's other instances: the host restarts all of them
    return 0


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
