"""What `pointsman epp` runs: the rules and the endpoints followed, the picker served, from its start to its end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.admin.server import admin_server
from gateway.config.rules import LoadedRules
from gateway.config.specs import RulesSpec
from gateway.dataplane.context.worker_counters import counters_of
from gateway.epp.endpoint_picker import EndpointPicker
from gateway.epp.fleet_watch import FleetWatch
from gateway.epp.server import PickerServer
from gateway.epp.settings import PickerSettings
from gateway.net.collector import relax_collector
from gateway.net.listener_tls import listener_tls
from gateway.observability.exposition import render
from gateway.observability.exposition_state import ExpositionState
from gateway.protocol import prometheus_text
from gateway.supervision.ports import listen
from gateway.supervision.rulebook import Rulebook

_log = logging.getLogger("pointsman.epp")

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class PickerProcess:
    """Owns the ports and the signals around a picker."""

    def __init__(self, settings: PickerSettings, book: Rulebook, ready_file: Path | None = None) -> None:
        self._settings = settings
        self._book = book
        self._ready_file = ready_file
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()

    async def run(self, loaded: LoadedRules, rules: RulesSpec) -> int:
        """Serve until a signal; `rules` are those of `loaded` that a picker follows. Returns the exit status.

        Raises: PortError, TlsFileError, OSError.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signals.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self._book.reload)
        self._remove_ready_file()
        self._book.open(loaded)
        listener = listen(settings.host, settings.port, "--port")
        metrics_listener = listen(settings.metrics_host, settings.metrics_port, "--metrics-port")
        tls = listener_tls(settings.tls, ("h2",)) if settings.tls is not None else None
        fleet = FleetWatch(settings, self._book, rules)
        picker = EndpointPicker(fleet.plane, settings)
        server = PickerServer(picker)
        http = admin_server(_http_app(fleet, picker, server))
        serving_http = loop.create_task(http.serve([metrics_listener]))
        try:
            starting = loop.create_task(fleet.start())
            stopping = loop.create_task(self._signals.get())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return 0
            starting.result()
            gc.collect()
            gc.freeze()  # what is loaded by now stays loaded
            relax_collector()
            port = await server.serve(listener, tls=tls)
            self._announce(port, metrics_listener.getsockname()[1])
            await stopping
            await self._drain(server)
        finally:
            self._remove_ready_file()
            http.stop()
            await asyncio.gather(serving_http, return_exceptions=True)
            await fleet.close()
        return 0

    async def _drain(self, server: PickerServer) -> None:
        """Answer on for the delay while health says no, then let requests under way end; a second signal stops at
        once."""
        settings, again = self._settings, asyncio.get_running_loop().create_task(self._signals.get())
        server.is_leaving = True
        if settings.drain_delay:
            _log.info("stopping in %g s: health says no from now on", settings.drain_delay)
            await asyncio.wait([again], timeout=settings.drain_delay)
        _log.info("stopping: requests under way may end within %g s", settings.drain_timeout)
        stopping = asyncio.get_running_loop().create_task(server.stop(settings.drain_timeout))
        await asyncio.wait([stopping, again], return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await server.stop(0.0)
        stopping.cancel()
        again.cancel()

    def _announce(self, port: int, metrics_port: int) -> None:
        """Log the addresses, then write the ready file."""
        settings = self._settings
        _log.info("ext_proc   %s:%d%s", _in_url(settings.host), port, " with TLS" if settings.tls is not None else "")
        _log.info("metrics    http://%s:%d/metrics", _in_url(settings.metrics_host), metrics_port)
        if settings.host not in _LOOPBACK and not settings.is_closed:
            what = (
                "everyone who reaches %s:%d can ask for endpoints: let only the proxy reach it, or use --tls-client-ca"
            )
            _log.warning(what, settings.host, port)
        if self._ready_file is not None:
            partial = self._ready_file.with_name(self._ready_file.name + ".partial")
            partial.write_text(json.dumps({"ext_proc": port, "metrics": metrics_port, "pid": os.getpid()}) + "\n")
            partial.rename(self._ready_file)

    def _remove_ready_file(self) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)


def _http_app(fleet: FleetWatch, picker: EndpointPicker, server: PickerServer) -> Starlette:
    """Metrics, and health for those who check it over HTTP."""

    async def metrics(_: Request) -> Response:
        text = render(_exposition(fleet)) + prometheus_text.write(picker.metrics.families())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def health(is_well: Callable[[], bool]) -> Callable[[Request], Response]:
        return lambda _: PlainTextResponse("ok" if is_well() else "not ready", 200 if is_well() else 503)

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/livez", health(lambda: True)),
            Route("/readyz", health(lambda: server.is_serving(""))),
        ]
    )


def _exposition(fleet: FleetWatch) -> ExpositionState:
    """The gateway's metrics, as far as they are about a picker."""
    counted, prober, book = counters_of(fleet.plane), fleet.prober, fleet.book
    counted = replace(counted, loads={**counted.loads, **prober.loads})
    return ExpositionState(
        **{each.name: getattr(counted, each.name) for each in fields(counted)},
        health=prober.health,
        models=prober.models,
        drained=dict.fromkeys(fleet.sources.leaving),
        sources=fleet.sources.statuses(),
        rules_number=book.number,
        reloads_ok=book.readings_ok - fleet.reloads_refused,
        reloads_refused=book.readings_refused + fleet.reloads_refused,
        workers=1,
        version=version("pointsman"),
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
