"""Activators: when they are called, and what they send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gateway.config.engine_specs import ActivatorSpec, EndpointSpec, EngineSpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.supervision.activation import Activations, send_request
from tests.dataplane.stage import Engine, run

SPEC = ActivatorSpec("http://a/start", interval=30.0)


def engines(spec: ActivatorSpec | None = SPEC) -> dict[str, EngineSpec]:
    return {"it": EngineSpec("it", (EndpointSpec("http://e:80"),), activator=spec)}


class Activators:
    """The activations under test, with a clock, and activators that answer with a status or fail."""

    def __init__(self) -> None:
        self.now = 100.0
        self.result: int | GatewayError = 200
        self.calls: list[float] = []
        self.activations = Activations(self._send, lambda: self.now)
        self.activations.use(engines())

    async def _send(self, spec: ActivatorSpec) -> int:
        self.calls.append(self.now)
        if isinstance(self.result, GatewayError):
            raise self.result
        return self.result

    async def wanted(self, seconds: float = 0.0) -> int:
        """Report the engine as wanted, so many seconds later; returns how many calls this has made."""
        self.now += seconds
        before = len(self.calls)
        self.activations.wanted("it")
        self.activations.wanted("it")
        await asyncio.sleep(0)
        return len(self.calls) - before


def scene(play: Callable[[Activators], Awaitable[None]]) -> None:
    async def whole() -> None:
        await play(Activators())

    run(whole())


def test_one_call_for_all_that_wait() -> None:
    """The first request makes one call; while requests go on waiting, the next call comes after the interval."""

    async def play(it: Activators) -> None:
        assert [await it.wanted(seconds) for seconds in (0.0, 1.0, 28.9, 0.2, 1.0)] == [1, 0, 0, 1, 0]
        it.activations.wanted("unknown")
        it.activations.use(engines(None))
        assert await it.wanted(1000.0) == 0

    scene(play)


@pytest.mark.parametrize("result", [503, GatewayError(ErrorKind.UPSTREAM_CONNECT, "refused")])
def test_a_failed_call_is_repeated(result: int | GatewayError, caplog: pytest.LogCaptureFixture) -> None:
    """After a failure the pauses grow from a second up to the interval; the log says why, without the URL."""

    async def play(it: Activators) -> None:
        it.result = result
        with caplog.at_level(logging.WARNING):
            for _ in range(200):
                await it.wanted(0.5)
        assert [at - it.calls[0] for at in it.calls] == [0, 1, 3, 7, 15, 31, 61, 91]
        assert "activator of engine 'it' failed" in caplog.text and "http://" not in caplog.text
        it.result = 200
        assert await it.wanted(30.0) == 1
        assert await it.wanted(29.0) == 0

    scene(play)


def test_rules_that_change_nothing_keep_the_pause() -> None:
    """A reload with the same activator makes no further call; another one is called at once."""

    async def play(it: Activators) -> None:
        assert await it.wanted() == 1
        it.activations.use(engines())
        assert await it.wanted() == 0
        it.activations.use(engines(ActivatorSpec("http://b/start")))
        assert await it.wanted() == 1
        await it.activations.close()

    scene(play)


def test_a_rotated_credential_keeps_the_pause() -> None:
    """A reload with another credential makes no further call, unless the last one has failed: it may succeed now."""

    async def play(it: Activators) -> None:
        assert await it.wanted() == 1
        it.activations.use(engines(replace(SPEC, headers={"authorization": "1"})))
        assert await it.wanted() == 0
        it.result = 401
        assert await it.wanted(30.0) == 1
        assert await it.wanted() == 0
        it.activations.use(engines(replace(SPEC, headers={"authorization": "2"})))
        assert await it.wanted() == 1

    scene(play)


def test_the_request_is_as_the_rules_say() -> None:
    """The method, the path with its query, the fields and the body reach the server; its status is the outcome."""

    async def whole() -> None:
        server = Engine()
        await server.start()
        spec = ActivatorSpec(
            f"{server.url}/apis/apps/v1/namespaces/n/deployments/d/scale?fieldManager=pointsman",
            method="PATCH",
            headers={"authorization": "Bearer t", "content-type": "application/merge-patch+json"},
            body='{"spec":{"replicas":1}}',
        )
        assert await send_request(spec) == 200
        [received] = server.received
        assert received.line == ("PATCH /apis/apps/v1/namespaces/n/deployments/d/scale?fieldManager=pointsman HTTP/1.1")
        assert received.body == b'{"spec":{"replicas":1}}'
        assert received.value("authorization") == "Bearer t"
        assert received.value("content-type") == "application/merge-patch+json"
        assert received.value("host") == server.url.removeprefix("http://")
        server.stop()
        with pytest.raises(GatewayError):
            await send_request(spec)

    run(whole())
