"""The process of a model's instances: imports the backend, completes the configuration, has a thread for each."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.backends.contract import InstanceSpec
from engines.errors import EngineError, ErrorCode
from engines.ipc import kinds
from engines.ipc.arena import Arena, Mapping
from engines.runner.arrays import ArrayStore
from engines.runner.connection import Connection, HostGoneError
from engines.runner.instance import RunningInstance, as_error
from engines.runner.link import HostLink
from gateway.protocol import protobuf

_PR_SET_PDEATHSIG = 1
# One for each instance: its channel, the arena that it reads, the arena that it writes.
Descriptors = tuple[int, int, int]


def run(lifeline: int, limit_bytes: int, descriptors: Sequence[Descriptors]) -> int:
    """Serve on these channels until the host says stop: the exit code. `lifeline` is a pipe that ends with the host."""
    live_and_die_with_the_host(lifeline)
    connections = [open_connection(each, limit_bytes) for each in descriptors]
    try:
        return serve(connections)
    except HostGoneError:
        return 1


def live_and_die_with_the_host(lifeline: int) -> None:
    """Ctrl-C in a terminal is the host's to handle, and without a host there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # Kills also where the model holds the interpreter's lock for ever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def open_connection(descriptors: Descriptors, limit_bytes: int) -> Connection:
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # a model's own children must not keep the channel open
    channel, received, sent = descriptors
    return Connection(socket.socket(fileno=channel), ArrayStore(Arena(sent, limit_bytes), Mapping(received)))


def serve(connections: list[Connection]) -> int:
    first = connections[0]
    fields = first.next_work()[2]
    try:
        module = import_backend(fields["backend"])
        config = protobuf.message("inference.ModelConfig").FromString(fields["config"])
        if fields["completes"]:
            if hasattr(module, "complete_version"):
                module.complete_version(config, Path(fields["version_directory"]))
            else:
                module.complete(config, Path(fields["directory"]))
    except BaseException as error:
        failure = as_error(error)
        first.send(kinds.FAILED, failure.code.value, failure.message)
        return 1
    shares = bool(getattr(module, "INSTANCES_SHARE_A_PROCESS", False))
    first.send(kinds.LOADED, config.SerializeToString(), shares)
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
    """The module of a backend.

    Raises: EngineError where there is none of this name; whatever importing it raises.
    """
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


def serve_one(module: Any, connection: Connection, fields: dict[str, Any], config: Any) -> int:
    """One instance, from its start to its stop."""
    try:
        message = connection.next_work()
        if message[0] == kinds.STOP:
            connection.send(kinds.STOPPED)
            return 0
        _, _, name, kind, device_id = message
        backend = module.create()
        if hasattr(backend, "attach"):
            backend.attach(HostLink(connection))
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
        return 1  # the host knows
    except HostGoneError:
        return 1
    return 0
