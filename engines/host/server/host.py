"""The host: its parts, its start and its stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from engines.core.errors import EngineError
from engines.host import metrics
from engines.host.grpc.server import GrpcServer
from engines.host.logs import LogSettings
from engines.host.model_loader import Loader
from engines.host.otlp import OpenTelemetryMissingError, exporter
from engines.host.rest.app import RestApp
from engines.host.rest.server import RestServer
from engines.host.service import Service
from engines.host.settings import Address, HostSettings
from engines.host.shared_memory import SharedMemoryRegions
from engines.host.tracing import Tracer
from engines.instances.instance_set import count_gpus
from engines.repository import Mode, Repository
from gateway.net.sockets import bind
from gateway.protocol.operations import TRITON_VERSION
from gateway.protocol.prometheus_text import PrometheusFamily
from gateway.protocol.restricted_apis import RestrictedApis

_log = logging.getLogger(__name__)

# For the last replies to be sent once nothing is in flight.
_LAST_SECONDS = 1.0


class StartError(Exception):
    """The host cannot serve."""


class LoadError(StartError):
    """Models cannot be loaded: reasons by name."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        self.failures = failures
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in failures.items())
        super().__init__(f"failed to load all models:\n{reasons}\n--exit-on-error=false serves the others")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the host listens; 0 where it does not."""

    http: int
    grpc: int
    metrics: int


class Host:
    """A host in the running event loop: `start`, then `stop`, once each; `stop` also after a start that has failed."""

    def __init__(self, settings: HostSettings, logs: LogSettings) -> None:
        """Raises: StartError."""
        self._settings = settings
        try:
            self._tracer = Tracer(settings.trace, exporter(settings.trace))
            self._loader = Loader(settings, self._tracer, infer=lambda call: self.service.infer(call))
        except (OpenTelemetryMissingError, ValueError) as error:
            raise StartError(str(error)) from error
        self._repository = self._loader.repository = Repository(
            settings.repositories,
            self._loader,
            mode=Mode(settings.control_mode),
            startup_models=settings.load_models,
            poll_seconds=settings.repository_poll_seconds,
            gpus=range(count_gpus()),
            config_name=settings.config_name,
            auto_complete=settings.completes_configs,
        )
        self.service = Service(
            models=self._repository,
            regions=SharedMemoryRegions(is_allowed=settings.allows_client_shared_memory),
            tracer=self._tracer,
            logs=logs,
            name=settings.name,
            version=TRITON_VERSION,
            restrictions={
                "rest": RestrictedApis(settings.http_restrictions),
                "grpc": RestrictedApis(settings.grpc_restrictions),
            },
            is_strict=settings.strict_readiness,
        )
        self._listeners: dict[str, socket.socket] = {}  # bound, until they are served
        self._servers: dict[str, RestServer | GrpcServer] = {}
        self._ports: dict[str, int] = {}

    @property
    def ports(self) -> Ports:
        return Ports(**{"http": 0, "grpc": 0, "metrics": 0, **self._ports})

    async def start(self) -> None:
        """Load the models, then listen, as Triton does; a port in use fails before that. Raises: StartError."""
        settings = self._settings
        for name, address in (("http", settings.http), ("grpc", settings.grpc), ("metrics", settings.metrics)):
            if address is not None:
                self._bind(name, address)
        try:
            failures = await self._repository.start()
        except EngineError as error:
            raise StartError(error.message) from error
        if failures and settings.exit_on_error:
            raise LoadError(failures)
        await self._listen("http", lambda: RestServer(RestApp(self.service, settings.limits), settings.limits))
        await self._listen("grpc", lambda: GrpcServer(self.service, settings.limits))
        await self._listen("metrics", lambda: RestServer(metrics.metrics_app(self._families), settings.limits))

    def announce_stop(self) -> None:
        """Serve on, and say no when asked for readiness."""
        self.service.is_leaving = True

    async def stop(self) -> None:
        """Take no new requests, let those in flight end for a while, and unload the models."""
        grace = self._settings.exit_timeout_seconds
        deadline = asyncio.get_running_loop().time() + grace
        self.service.is_serving = False
        for listener in self._listeners.values():
            listener.close()
        num_in_flight = sum(model.num_in_flight for model in self._loader.models)
        _log.info("stopping: %d requests in flight, which have %g seconds", num_in_flight, grace)
        metrics_server = self._servers.pop("metrics", None)
        await asyncio.gather(*(server.stop(grace) for server in self._servers.values()))
        await self._unload(deadline)
        if metrics_server is not None:
            await metrics_server.stop(0)
        self._tracer.close()

    def _bind(self, name: str, address: Address) -> None:
        try:
            listener = bind(address.host, address.port)
        except OSError as error:
            raise _cannot_listen(name, address, error) from error
        twin = next((other for other, it in self._listeners.items() if it.getsockname() == listener.getsockname()), "")
        if twin:  # the system refuses only once both listen
            listener.close()
            raise _cannot_listen(name, address, OSError(f"the {twin} port is the same"))
        self._listeners[name] = listener

    async def _listen(self, name: str, make: Callable[[], RestServer | GrpcServer]) -> None:
        listener = self._listeners.pop(name, None)
        if listener is None:
            return
        server = make()
        try:
            self._ports[name] = await server.serve(listener)
        except OSError as error:
            host, port, *_ = listener.getsockname()
            raise _cannot_listen(name, Address(host, port), error) from error
        self._servers[name] = server

    async def _unload(self, deadline: float) -> None:
        closing = asyncio.ensure_future(self._repository.close())
        remaining = deadline - asyncio.get_running_loop().time()
        await asyncio.wait({closing}, timeout=max(remaining, _LAST_SECONDS))
        if not closing.done():
            _log.warning("requests are still in flight after %g seconds", self._settings.exit_timeout_seconds)
            for model in self._loader.models:
                model.abort()
        with suppress(EngineError):
            await closing

    def _families(self) -> Iterator[PrometheusFamily]:
        yield from metrics.families(self._loader.models, self._settings.metrics_config)
        if self._loader.cache is not None:
            yield from metrics.cache_families(self._loader.cache)
        yield from self._loader.custom_metrics.families()


def _cannot_listen(name: str, address: Address, error: OSError) -> StartError:
    where = f"{address.host}:{address.port}"
    return StartError(f"cannot listen on {where}: {error.strerror or error}; choose with --{name}-port")
