"""What `pointsman serve` runs: the control process from its start to its exit status."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.admin.app import make_app
from gateway.admin.audit import AuditFile, OperationAudit, RedisLog
from gateway.admin.auth import Access
from gateway.admin.event_feed import Feed
from gateway.admin.local_key import socket_path
from gateway.admin.server import AdminServer, admin_server
from gateway.admin.sign_in import sign_in_url
from gateway.cli.check import summarize
from gateway.config.rules import LoadedRules
from gateway.config.settings import Settings
from gateway.net import descriptors
from gateway.net.listener_tls import listener_tls
from gateway.supervision.control_plane import ControlPlane
from gateway.supervision.ports import PortError, PrivateSocket, ReservedPort, listen
from gateway.supervision.redis_setup import data_dir_of, versions_dir
from gateway.supervision.rulebook import Rulebook
from gateway.supervision.worker_pool import COMMAND, StartError, WorkerPool

_log = logging.getLogger("pointsman")


class Supervisor:
    """Owns the ports, the admin server, the signals and the ready file around a `ControlPlane`."""

    def __init__(
        self,
        settings: Settings,
        rule_paths: Sequence[Path],
        *,
        ready_file: Path | None = None,
        worker_command: Sequence[str] = COMMAND,
    ) -> None:
        """Made before the rules are loaded: a change of their files meanwhile is noticed."""
        self._settings = settings
        self._book = Rulebook(rule_paths, versions_dir(settings, rule_paths), settings.rules_api_env)
        self._ready_file = ready_file
        self._worker_command = worker_command
        self._stop_signals: asyncio.Queue[signal.Signals] = asyncio.Queue()

    async def run(self, loaded: LoadedRules) -> int:
        """Serve until a signal; returns the exit status.

        Raises: AccessError, PortError, StartError.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        descriptors.raise_limit()
        access = Access.of(settings)
        self._book.open(loaded)
        self._take_signals(loop)
        self._remove_ready_file()  # a crashed predecessor may have left one
        ports = self._reserve_ports()
        admin = listen(settings.admin_host, settings.admin_port, "--admin-port")
        admin_port = admin.getsockname()[1]
        control = ControlPlane(settings, self._book, ports, self._worker_command)
        feed = Feed(control)
        log = RedisLog(control.store) if control.store is not None else AuditFile(data_dir_of(settings))
        audit = OperationAudit(log)
        control.workers.on_audited = audit.record
        tls = listener_tls(settings.admin_tls, ("http/1.1",)) if settings.admin_tls is not None else None
        server = admin_server(make_app(control, access, log, feed), tls)
        private = PrivateSocket.listen(self._private_path(admin_port)) if access.local is not None else None
        listeners = [admin] if private is None else [admin, private.socket]
        serving_admin = loop.create_task(server.serve(listeners))
        try:
            starting = loop.create_task(self._start(control, server, serving_admin))
            stopping = loop.create_task(self._stop_signals.get())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                control.run()
                _log.info("%s", summarize(loaded))
                self._announce(ports[0].port, ports[-1].port, admin_port)
                if access.local is not None and sys.stderr.isatty():  # a terminal is no log
                    print(f"sign in    {sign_in_url(self._admin_url(admin_port), access.local)}", file=sys.stderr)
            starting.cancel()
            await stopping
            return await self._drain(control.workers)
        finally:
            self._remove_ready_file()
            await control.stop_workers()
            await audit.close()
            feed.close()
            server.stop()
            await asyncio.gather(serving_admin, return_exceptions=True)
            await control.close()
            for port in ports:
                port.close()
            if private is not None:
                private.close()

    def _reserve_ports(self) -> list[ReservedPort]:
        """Raises: PortError."""
        settings = self._settings
        ports = [ReservedPort(settings.host, settings.http_port, "--http-port")]
        if settings.grpc_port != ports[0].port:
            ports.append(ReservedPort(settings.host, settings.grpc_port, "--grpc-port"))
        for port in ports:
            if (settings.host, port.port) == (settings.admin_host, settings.admin_port):
                raise PortError(f"port {port.port} cannot serve both: choose another with --admin-port")
        return ports

    def _take_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """First of all: a signal's default action would end this process and leave its workers behind."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_signals.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self._book.reload)

    async def _start(self, control: ControlPlane, server: AdminServer, serving_admin: asyncio.Task[None]) -> None:
        """Return once the gateway and its admin API serve.

        Raises: StartError.
        """
        await control.start()
        while not server.started:
            if serving_admin.done():
                raise StartError("the admin API does not serve")
            await asyncio.sleep(0.01)

    async def _drain(self, workers: WorkerPool) -> int:
        """Let requests in flight end; a second signal stops at once."""
        loop = asyncio.get_running_loop()
        _log.info("stopping: requests in flight may end within %g s", self._settings.drain_timeout)
        draining = loop.create_task(workers.drain())
        again = loop.create_task(self._stop_signals.get())
        await asyncio.wait([draining, again], return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            _log.warning("stopping at once")
            workers.kill()
            draining.cancel()
            return 1
        again.cancel()
        return 0 if draining.result() else 1

    def _announce(self, http_port: int, grpc_port: int, admin_port: int) -> None:
        """Log the addresses, then write the ready file: its reader may read the log."""
        host, admin = _in_url(self._settings.host), self._admin_url(admin_port)
        _log.info("inference  %s://%s:%d/v2", "https" if self._settings.tls else "http", host, http_port)
        _log.info("gRPC       %s:%d", host, grpc_port)
        _log.info("page       %s/ (`pointsman page` prints a link that signs in)", admin)
        _log.info("metrics    %s/metrics", admin)
        if self._ready_file is not None:
            content = {"http": http_port, "grpc": grpc_port, "admin": admin_port, "pid": os.getpid()}
            partial = self._ready_file.with_name(self._ready_file.name + ".partial")
            partial.write_text(json.dumps(content) + "\n")
            partial.rename(self._ready_file)

    def _admin_url(self, port: int) -> str:
        scheme = "http" if self._settings.admin_tls is None else "https"
        return f"{scheme}://{_in_url(self._settings.admin_host)}:{port}"

    def _private_path(self, port: int) -> Path | None:
        folder = data_dir_of(self._settings)
        return socket_path(folder, port) if folder is not None else None

    def _remove_ready_file(self) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
