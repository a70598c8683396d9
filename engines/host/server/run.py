"""Runs a host in this process: event loop, signals, ready file."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path

from engines.host.logs import LogSettings
from engines.host.server.host import Host, Ports, StartError
from engines.host.settings import Address, HostSettings
from gateway.net import descriptors
from gateway.net.server import loop_factory

_log = logging.getLogger("engines.host")

# Inferences create no cycles, so collections find little: at the default of 700 they would cost more than scheduling.
_GC_THRESHOLD = 20_000


class RunReporter:
    """Reports a host's start and end: errors on stderr, addresses in the log."""

    def failed(self, error: StartError) -> None:
        """The host does not start."""
        print(f"pointsman host: {error}", file=sys.stderr)

    def serving(self, host: Host, settings: HostSettings) -> None:
        """The host answers requests."""
        ports = host.ports
        for line, address, port in (
            ("REST     http://%s:%d/v2", settings.http, ports.http),
            ("gRPC     %s:%d", settings.grpc, ports.grpc),
            ("metrics  http://%s:%d/metrics", settings.metrics, ports.metrics),
        ):
            if address is not None:
                _log.info(line, url_host(address), port)

    def stopping(self) -> None:
        """The host was signalled to end."""


def run(settings: HostSettings, logs: LogSettings, ready_file: Path | None, reporter: RunReporter | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    descriptors.raise_limit()  # a connection takes one, an instance a few
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings, logs, ready_file, reporter or RunReporter()))


def url_host(address: Address) -> str:
    """The host of an address as a URL has it."""
    return f"[{address.host}]" if ":" in address.host else address.host


async def _serve(settings: HostSettings, logs: LogSettings, ready_file: Path | None, reporter: RunReporter) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            os._exit(1)  # a second signal ends the process at once
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    try:
        host = Host(settings, logs)
    except StartError as error:
        reporter.failed(error)
        return 1
    starting = asyncio.ensure_future(host.start())
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    exit_code = 0
    if starting.done():
        _settle_memory()
        exit_code = _started(starting, host, settings, ready_file, reporter)
        if not exit_code:
            await waiting
            if settings.drain_delay_seconds:
                host.announce_stop()
                _log.info("stopping in %g seconds: readiness says no from now on", settings.drain_delay_seconds)
                await asyncio.sleep(settings.drain_delay_seconds)
            reporter.stopping()
    else:
        starting.cancel()
        await asyncio.wait({starting})
    waiting.cancel()
    await host.stop()
    return exit_code


def _started(
    starting: asyncio.Future[None], host: Host, settings: HostSettings, ready_file: Path | None, reporter: RunReporter
) -> int:
    try:
        starting.result()
        reporter.serving(host, settings)
        if ready_file is not None:
            _write_ready(ready_file, host.ports)
    except StartError as error:
        reporter.failed(error)
        return 1
    return 0


def _settle_memory() -> None:
    """Exempt what the start created from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)


def _write_ready(path: Path, ports: Ports) -> None:
    """Write the ready file under another name and rename it, so that readers see it complete. Raises: StartError."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    content = {"http": ports.http, "grpc": ports.grpc, "metrics": ports.metrics, "pid": os.getpid()}
    try:
        aside.write_text(json.dumps(content))
        aside.replace(path)
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}") from error
