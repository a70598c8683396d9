"""The admin API's app is made when it is first needed."""

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import pytest

from gateway.admin.deferred_app import DeferredApp


class Maker:
    """Makes an app that answers 204, but for the first times."""

    def __init__(self, num_failures: int = 0) -> None:
        self.num_made = 0
        self.num_ended = 0
        self._num_failures = num_failures

    def __call__(self) -> tuple[Any, Any]:
        self.num_made += 1
        if self.num_made <= self._num_failures:
            raise OSError("too many open files")
        return self._answer, self._end

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    def _end(self) -> None:
        self.num_ended += 1


async def status_of(app: DeferredApp) -> int:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.get("/")).status_code


def test_the_first_request_makes_it() -> None:
    """Requests that come meanwhile wait for the same app; `close` ends its streams."""
    maker = Maker()

    async def scene() -> list[int]:
        app = DeferredApp(maker)
        app.start(3600)
        statuses = await asyncio.gather(*(status_of(app) for _ in range(3)))
        statuses.append(await status_of(app))
        app.close()
        return statuses

    assert asyncio.run(scene()) == [204] * 4
    assert (maker.num_made, maker.num_ended) == (1, 1)


def test_without_requests_it_is_made_later() -> None:
    """A gateway that nobody asks has its app, too, before there is need for it."""
    maker = Maker()

    async def scene() -> None:
        app = DeferredApp(maker)
        app.start(0)
        while not maker.num_made:
            await asyncio.sleep(0.001)
        assert await status_of(app) == 204
        app.close()

    asyncio.run(scene())
    assert (maker.num_made, maker.num_ended) == (1, 1)


def test_one_that_cannot_be_made_is_tried_again() -> None:
    """A request fails where the app cannot be made; the next one tries it again."""
    maker = Maker(num_failures=1)

    async def scene() -> int:
        app = DeferredApp(maker)
        with pytest.raises(OSError, match="too many open files"):
            await status_of(app)
        return await status_of(app)

    assert asyncio.run(scene()) == 204


def test_a_start_does_not_load_the_framework() -> None:
    """The control process starts without the libraries of the admin API, of sources of endpoints and of tables."""
    program = "import sys, gateway.cli.app, gateway.cli.supervisor, gateway.worker.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert {"gateway", "uvicorn"} <= loaded
    assert not loaded & {"fastapi", "pydantic", "httpx", "dns", "rich", "numpy", "redis"}
