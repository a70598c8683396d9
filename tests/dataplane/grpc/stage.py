"""The gRPC data plane on loopback, between peers of the h2 library, or raw ones."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from h2.settings import SettingCodes
from tritonclient.grpc import service_pb2

from gateway.config.engine_specs import ConnectionSpec
from gateway.config.operation_access import OperationAccess, read_allowed
from gateway.config.settings import Limits, Settings
from gateway.dataplane.context import data_plane as plane_module
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.listener import ProtocolDetector
from gateway.observability.access_log import AccessLog
from gateway.redis.bounded_client import BoundedRedis
from tests.dataplane.grpc.peers import GrpcClient, GrpcEngine
from tests.dataplane.stage import Engine, Stage, held_of_limits, load, until

WINDOW = ConnectionSpec().window_bytes  # the most an engine's stream may send before its client has read any of it
RESULT = service_pb2.ModelInferResponse(model_name="m", model_version="1", id="a").SerializeToString()


class _SweepCounter:
    """Stands among the connections and counts sweeps."""

    peer = "-"

    def __init__(self, number: int) -> None:
        self._left = number
        self.is_done = asyncio.Event()

    def sweep(self, now: float) -> None:
        self._left -= 1
        if self._left < 0:  # the first may have been in progress
            self.is_done.set()

    def live(self) -> list[Any]:
        return []

    def drain(self) -> None: ...

    def abort(self) -> None: ...


class GrpcStage(Stage):
    """One data plane, and clients for it."""

    def __init__(self, plane: DataPlane, port: int) -> None:
        super().__init__(plane, port)
        self.peers: list[GrpcClient] = []
        self._log = io.StringIO()
        plane.request_log.access_log = AccessLog("json", self._log)

    async def grpc(self, *, settings: dict[SettingCodes, int] | None = None, **options: Any) -> GrpcClient:
        """Open another HTTP/2 connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        peer = GrpcClient(reader, writer, is_client=True, settings=settings)
        self.peers.append(peer)
        return peer

    async def sweeps(self, number: int) -> None:
        """Wait until the data plane has swept its connections this many times."""
        counter = _SweepCounter(number)
        self.plane.connections.add(counter)
        try:
            await asyncio.wait_for(counter.is_done.wait(), 120)
        finally:
            self.plane.connections.discard(counter)

    async def settled(self, read: Callable[[], int]) -> int:
        """The value of a number once it stays the same from one sweep to the next."""
        before = 0
        while not before or before != read():
            before = read()
            await self.sweeps(1)
        return before

    def log(self) -> list[Any]:
        """The access log's lines."""
        assert self.plane.request_log.access_log is not None
        self.plane.request_log.access_log.flush()
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    def in_flight(self) -> int:
        """Tries counted on endpoints and in the counters; both must agree."""
        counted = sum(endpoint.in_flight for endpoint in self.endpoints())
        assert counted == sum(series.in_flight for series in self.plane.metrics.by_key.values())
        return counted

    def requests(self) -> dict[int, int]:
        """All counted requests by status."""
        found: dict[int, int] = {}
        for series in self.plane.metrics.by_key.values():
            for status, number in series.statuses.items():
                found[status] = found.get(status, 0) + number
        return found


@asynccontextmanager
async def grpc_stage(
    text: str,
    tmp_path: Any,
    *,
    limits: dict[str, Any] | None = None,
    tls: Any = None,
    sweep_seconds: float = 0.1,
    store: BoundedRedis | None = None,
    **settings: Any,
) -> AsyncIterator[GrpcStage]:
    """The data plane under these rules; its once-a-second work runs every `sweep_seconds`.

    When a test ends, nothing may remain: no call counted in flight, no deadline, no stream, no task, no connection, no
    error reported to the event loop.
    """
    plane_module._SWEEP_SECONDS, swept = sweep_seconds, plane_module._SWEEP_SECONDS
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: None if is_of_grpc_aio(context) else reported.append(context))
    settings.setdefault("operation_access", OperationAccess(read_allowed(["all"])))
    plane = DataPlane(Settings(limits=Limits(**(limits or {})), **settings), load(text, tmp_path), 1, {}, store)
    first = plane.snapshot
    server = await loop.create_server(lambda: ProtocolDetector(plane), "127.0.0.1", 0, ssl=tls)
    it = GrpcStage(plane, server.sockets[0].getsockname()[1])
    try:
        yield it
        for client in it.clients:
            client.close()
        for peer in it.peers:
            peer.abort()
        await until(lambda: not plane.connections)
        await until(lambda: not left_behind(plane, first.engines.values()) or reported)
        assert not left_behind(plane, first.engines.values())
        assert not reported, reported
        await asyncio.gather(*[peer.task for peer in it.peers], return_exceptions=True)
    finally:
        plane_module._SWEEP_SECONDS = swept
        plane.close()
        server.close()


def is_of_grpc_aio(context: dict[str, Any]) -> bool:
    """Whether the error is about a task that gRPC's own client dropped."""
    return "/grpc/aio/" in repr(context.get("task"))


def left_behind(plane: DataPlane, engines: Any) -> list[str]:
    """What finished calls have left behind."""
    found = []
    for engine in {*engines, *plane.snapshot.engines.values()}:
        for endpoint in engine.endpoints:
            found += [f"{endpoint!r}"] if endpoint.in_flight else []
            found += [f"{endpoint.pool!r}"] if endpoint.pool is not None and endpoint.pool.num_busy else []
            streams = endpoint.streams
            found += [f"{streams!r}"] if streams is not None and not is_at_rest(streams) else []
    found += [f"{series.key} counts {series.in_flight}" for series in plane.metrics.by_key.values() if series.in_flight]
    plane.wheel.rest()
    found += held_of_limits(plane)
    found += [] if "0 deadlines" in repr(plane.wheel) else [repr(plane.wheel)]
    return found + gateway_tasks()


def is_at_rest(pool: Any) -> bool:
    """Whether a pool has no streams in use, no waiter and no connection being opened."""
    return "0 streams, 0 wait>" in repr(pool) and pool.size == len(pool._connections)


def gateway_tasks() -> list[str]:
    """The tasks that run the gateway's own code."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return [
        f"{coroutine!r}"
        for coroutine in coroutines
        if "/gateway/" in getattr(getattr(coroutine, "cr_code", None), "co_filename", "")
    ]


def grpc_rules(*engines: GrpcEngine | Engine, options: str = "", routes: str = "") -> str:
    """Rules with one engine `it` that has all the endpoints, and a route to it; `options` are more of the engine's
    keys."""
    return many({"it": (engines, options)}, routes or "  - {name: all, engine: it}\n")


def many(engines: dict[str, Any], routes: str = "") -> str:
    """Rules with engines by name: each a scripted one, several, or several with options. Without `routes`, each engine
    serves the models whose names begin with its name."""
    lines = ["version: 1", "engines:"]
    made = ""
    for name, given in engines.items():
        endpoints, options = given if isinstance(given, tuple) and isinstance(given[-1], str) else (given, "")
        endpoints = endpoints if isinstance(endpoints, tuple) else (endpoints,)
        urls = ", ".join(f"'{each if isinstance(each, str) else each.url}'" for each in endpoints)
        lines += [f"  {name}:", f"    endpoints: [{urls}]", "    health: {interval: 0}"]
        lines += [f"    {options}"] if options else []
        made += f"  - {{name: {name}, match: {{model: '{name}*'}}, engine: {name}}}\n"
    return "\n".join(lines) + f"\nroutes:\n{routes or made}"


def request(model: str = "m", request_id: str = "", **more: Any) -> bytes:
    """A ModelInferRequest."""
    parameters = more.pop("parameters", {})
    made = service_pb2.ModelInferRequest(model_name=model, id=request_id, **more)
    for key, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(made.parameters[key], kind, value)
    return bytes(made.SerializeToString())


def response(model: str = "m", request_id: str = "", **more: Any) -> bytes:
    """A ModelStreamInferResponse."""
    made = service_pb2.ModelStreamInferResponse()
    made.infer_response.model_name = model
    made.infer_response.id = request_id
    made.infer_response.raw_output_contents.extend(more.get("raw", []))
    return bytes(made.SerializeToString())


def answers(messages: list[bytes]) -> list[str]:
    """A stream's responses in short: the id or model of each, and its error if it has one."""
    found = []
    for message in messages:
        read = service_pb2.ModelStreamInferResponse.FromString(message)
        reply = read.infer_response.id or read.infer_response.model_name
        found.append(f"{reply}: {read.error_message}" if read.error_message else reply)
    return found
