"""Both fronts over a fake service, in a thread of their own: the clients of the tests may block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from engines.host.client_limits import ClientLimits
from engines.host.grpc.server import GrpcServer
from engines.host.rest.app import RestApp
from engines.host.rest.server import RestServer
from tests.engines.host.fake_service import FakeService

Result = TypeVar("Result")

FORWARDED = "x-forward-.*"


class Fronts:
    """Where they listen, and the service behind them."""

    def __init__(self, service: FakeService, limits: ClientLimits) -> None:
        self.service = service
        self.grpc = GrpcServer(service, limits)
        self.rest = RestServer(RestApp(service, limits))
        self.grpc_port = self.rest_port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def rest_url(self) -> str:
        return f"127.0.0.1:{self.rest_port}"

    def do(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run this where the fronts run."""

        async def run() -> Result:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(120)

    def call(self, what: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return what()

        return self.do(run)

    def start(self) -> None:
        self._thread.start()
        self.grpc_port = self.do(lambda: self.grpc.start("127.0.0.1", 0))
        self.rest_port = self.do(lambda: self.rest.start("127.0.0.1", 0))

    def stop(self) -> None:
        self.do(lambda: self.grpc.stop(0.2))
        self.do(lambda: self.rest.stop(0.2))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()


@contextmanager
def fronts(limits: ClientLimits | None = None, **restrictions: tuple[str, str]) -> Iterator[Fronts]:
    """Fronts for a while."""
    built = Fronts(
        FakeService(**restrictions),
        limits or ClientLimits(rest_header_pattern=FORWARDED, grpc_header_pattern=FORWARDED),
    )
    built.start()
    try:
        yield built
    finally:
        built.stop()
