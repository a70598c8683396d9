"""A host in this process: its event loop, its signals, its ready file."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from engines.host.logs import LogSettings
from engines.host.server import Host, Ports, StartError
from engines.host.settings import Address, HostSettings
from gateway.net import descriptors

_log = logging.getLogger("engines.host")

# No inference makes cycles, so collections find little: the default of 700 would have them cost more than scheduling.
_GC_THRESHOLD = 20_000


class Audience:
    """Who is told how it goes: what is wrong on stderr, where it serves in the log."""

    def failed(self, error: StartError) -> None:
        """It does not start."""
        print(f"pointsman host: {error}", file=sys.stderr)

    def serves(self, host: Host, settings: HostSettings) -> None:
        """It answers from now on."""
        ports = host.ports
        for told, address, port in (
            ("REST     http://%s:%d/v2", settings.http, ports.http),
            ("gRPC     %s:%d", settings.grpc, ports.grpc),
            ("metrics  http://%s:%d/metrics", settings.metrics, ports.metrics),
        ):
            if address is not None:
                _log.info(told, told_host(address), port)

    def stops(self) -> None:
        """It has been asked to end."""


def run(settings: HostSettings, logs: LogSettings, ready_file: Path | None, audience: Audience | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    descriptors.raise_limit()  # a connection takes one, an instance a few
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(settings, logs, ready_file, audience or Audience()))


def told_host(address: Address) -> str:
    """As it stands in a URL."""
    return f"[{address.host}]" if ":" in address.host else address.host


async def _serve(settings: HostSettings, logs: LogSettings, ready_file: Path | None, audience: Audience) -> int:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell() -> None:
        if told.is_set():
            os._exit(1)  # the second time: at once, whatever is under way
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell)
    try:
        host = Host(settings, logs)
    except StartError as error:
        audience.failed(error)
        return 1
    starting = asyncio.ensure_future(host.start())
    waiting = asyncio.ensure_future(told.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    exit_code = 0
    if starting.done():
        _settle_memory()
        exit_code = _started(starting, host, settings, ready_file, audience)
        if not exit_code:
            await waiting
            audience.stops()
    else:
        starting.cancel()
        await asyncio.wait({starting})
    waiting.cancel()
    await host.stop()
    return exit_code


def _started(
    starting: asyncio.Future[None], host: Host, settings: HostSettings, ready_file: Path | None, audience: Audience
) -> int:
    try:
        starting.result()
        audience.serves(host, settings)
        if ready_file is not None:
            _write_ready(ready_file, host.ports)
    except StartError as error:
        audience.failed(error)
        return 1
    return 0


def _settle_memory() -> None:
    """What is there now stays: the garbage collector need not look at it again, nor as often as it does by default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)


def _write_ready(path: Path, ports: Ports) -> None:
    """Aside, and then renamed: who waits for the file finds it whole.

    Raises: StartError.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    told = {"http": ports.http, "grpc": ports.grpc, "metrics": ports.metrics, "pid": os.getpid()}
    try:
        aside.write_text(json.dumps(told))
        aside.replace(path)
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}") from error


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
