"""What `pointsman serve` runs: the control process from its start to its exit status."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from gateway.admin.access import Access
from gateway.admin.audit_log import AuditFile, AuditLog, OperationAudit, RedisLog
from gateway.admin.deferred_app import DeferredApp
from gateway.admin.local_key import sign_in_url, socket_path
from gateway.admin.server import AdminServer, admin_server
from gateway.cli.check import summarize
from gateway.config.rules import LoadedRules
from gateway.config.settings import Settings
from gateway.control.forked_child import ForkedChild
from gateway.control.messages import SetUnready
from gateway.net.listener_tls import listener_tls
from gateway.supervision.control_plane import ControlPlane
from gateway.supervision.ports import PortError, PrivateSocket, ReservedPort, listen
from gateway.supervision.predecessor import HANDOVER_SIGNAL, Predecessor
from gateway.supervision.redis_setup import data_dir_of, handover_dir
from gateway.supervision.rulebook import Rulebook
from gateway.supervision.worker_pool import COMMAND, StartError, WorkerPool

_log = logging.getLogger("pointsman")


class Supervisor:
    """Owns the ports, the admin server, the signals and the ready file around a `ControlPlane`."""

    def __init__(
        self,
        settings: Settings,
        book: Rulebook,
        *,
        ready_file: Path | None = None,
        worker_command: Sequence[str] = COMMAND,
        forked: list[ForkedChild] | None = None,
    ) -> None:
        """`forked` are the first workers; the others are started by `worker_command`."""
        self._settings = settings
        self._book = book
        self._ready_file = ready_file
        self._worker_command = worker_command
        self._forked = forked
        self._stop_signals: asyncio.Queue[signal.Signals] = asyncio.Queue()

    async def run(self, loaded: LoadedRules) -> int:
        """Serve until a signal; returns the exit status.

        Raises: AccessError, PortError, StartError.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        access = Access.of(settings)
        self._book.open(loaded)
        self._take_signals(loop)
        self._remove_ready_file()  # a crashed predecessor may have left one
        ports, predecessor = await self._take_ports()
        admin = listen(settings.admin_host, settings.admin_port, "--admin-port")
        admin_port = admin.getsockname()[1]
        control = ControlPlane(settings, self._book, ports, self._worker_command, self._forked)
        log = RedisLog(control.store) if control.store is not None else AuditFile(data_dir_of(settings))
        audit = OperationAudit(log)
        control.workers.on_audited = audit.record
        tls = listener_tls(settings.admin_tls, ("http/1.1",)) if settings.admin_tls is not None else None
        app = DeferredApp(partial(_make_admin, control, access, log))
        server = admin_server(app, tls)
        private = PrivateSocket.listen(self._private_path(admin_port)) if access.local is not None else None
        listeners = [admin] if private is None else [admin, private.socket]
        serving_admin = loop.create_task(server.serve(listeners))
        is_replaced = False
        try:
            inherited = predecessor.listeners(ports) if predecessor is not None else []
            starting = loop.create_task(self._start(control, server, serving_admin, inherited))
            stopping = loop.create_task(self._stop_signals.get())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if has_served := starting.done():
                starting.result()
                if predecessor is not None:
                    predecessor.drain()
                control.run()
                app.start()
                _log.info("%s", summarize(loaded))
                self._announce(ports[0].port, ports[-1].port, admin_port)
                if access.local is not None and sys.stderr.isatty():  # a terminal is no log
                    print(f"sign in    {sign_in_url(self._admin_url(admin_port), access.local)}", file=sys.stderr)
            starting.cancel()
            is_replaced = await stopping == HANDOVER_SIGNAL and has_served
            if is_replaced:
                _log.info("another gateway takes over: the workers serve until its own do")
                return 0
            return await self._drain(control.workers, has_served=has_served)
        finally:
            self._remove_ready_file()
            if predecessor is not None:
                predecessor.close()
            await control.stop_workers(leaves_them=is_replaced)
            await audit.close()
            app.close()
            server.stop()
            await asyncio.gather(serving_admin, return_exceptions=True)
            await control.close()
            for port in ports:
                port.close()
            if private is not None:
                private.close()
            if is_replaced:
                logging.shutdown()
                os._exit(0)  # the end of the event loop would kill its children

    async def _take_ports(self) -> tuple[list[ReservedPort], Predecessor | None]:
        """The ports, and the gateway that has served on them where its workers are left. Raises: PortError."""
        try:
            return self._reserve_ports(), None
        except PortError:
            settings, folder = self._settings, data_dir_of(self._settings)
            numbers = [port for port in (settings.http_port, settings.grpc_port) if port]
            if folder is None or not numbers:
                raise
            found = await Predecessor.find(handover_dir(folder), numbers, is_replaced=settings.take_over)
            if found is None:
                raise
            return self._reserve_ports(found), found

    def _reserve_ports(self, predecessor: Predecessor | None = None) -> list[ReservedPort]:
        """Raises: PortError."""
        settings = self._settings

        def reserve(port: int, option: str) -> ReservedPort:
            inherited = predecessor.listener(port) if predecessor is not None else None
            return ReservedPort(settings.host, port, option, inherited=inherited)

        ports = [reserve(settings.http_port, "--http-port")]
        if settings.grpc_port != ports[0].port:
            ports.append(reserve(settings.grpc_port, "--grpc-port"))
        for port in ports:
            if (settings.host, port.port) == (settings.admin_host, settings.admin_port):
                raise PortError(f"port {port.port} cannot serve both: choose another with --admin-port")
        return ports

    def _take_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """First of all: a signal's default action would end this process and leave its workers behind."""
        for number in (signal.SIGTERM, signal.SIGINT, HANDOVER_SIGNAL):
            loop.add_signal_handler(number, self._stop_signals.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self._book.reload)

    async def _start(
        self,
        control: ControlPlane,
        server: AdminServer,
        serving_admin: asyncio.Task[None],
        inherited: Sequence[Sequence[socket.socket]],
    ) -> None:
        """Return once the gateway and its admin API serve.

        Raises: StartError.
        """
        await control.start(inherited)
        while not server.started:
            if serving_admin.done():
                raise StartError("the admin API does not serve")
            await asyncio.sleep(0.01)

    async def _drain(self, workers: WorkerPool, *, has_served: bool) -> int:
        """Serve on for the delay, then let requests in flight end; a second signal stops at once."""
        loop = asyncio.get_running_loop()
        again = loop.create_task(self._stop_signals.get())
        if has_served and self._settings.drain_delay:
            workers.set(SetUnready())
            _log.info("stopping in %g s: readiness says no from now on", self._settings.drain_delay)
            await asyncio.wait([again], timeout=self._settings.drain_delay)
        draining = loop.create_task(self._finish(workers))
        await asyncio.wait([draining, again], return_when=asyncio.FIRST_COMPLETED)
        if again.done():
            _log.warning("stopping at once")
            workers.kill()
            draining.cancel()
            return 1
        again.cancel()
        return 0 if draining.result() else 1

    async def _finish(self, workers: WorkerPool) -> bool:
        """Whether all workers have ended by themselves."""
        _log.info("stopping: requests in flight may end within %g s", self._settings.drain_timeout)
        return await workers.drain()

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


def _make_admin(control: ControlPlane, access: Access, log: AuditLog) -> tuple[ASGIApp, Callable[[], None]]:
    from gateway.admin.app import make_app
    from gateway.admin.event_feed import Feed

    feed = Feed(control)
    return make_app(control, access, log, feed), feed.close


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
