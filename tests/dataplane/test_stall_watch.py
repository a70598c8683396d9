"""A worker whose event loop does not turn reports the request that it is in."""

from __future__ import annotations

import logging
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gateway.dataplane.dispatch import model_in_body
from gateway.dataplane.grpc import unary_call
from gateway.dataplane.translation import translators
from gateway.worker.stall_watch import StallWatch
from tests.dataplane.grpc.peers import GrpcEngine
from tests.dataplane.grpc.stage import grpc_rules, grpc_stage, request
from tests.dataplane.stage import Engine, post, run, stage

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'


def stalling(function: Any, watch: list[StallWatch]) -> Any:
    """The function, in which the watch looks as if a minute had passed, twice."""

    def stalled(*args: Any, **options: Any) -> Any:
        for _ in range(2):
            watch[0].look(monotonic() + 60)
        return function(*args, **options)

    return stalled


@pytest.mark.pure_python
def test_a_rest_request_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each stall, with method, path, operation, peer and size; the route, once it is known."""
    watch: list[StallWatch] = []
    monkeypatch.setattr(model_in_body, "find_model", stalling(model_in_body.find_model, watch))
    monkeypatch.setattr(translators, "read_generation", stalling(translators.read_generation, watch))

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = f"version: 1\nengines:\n  it: {{endpoints: ['{engine.url}']}}\nroutes:\n  - {{name: all, engine: it}}\n"
        async with stage(text, tmp_path) as it:
            watch.append(StallWatch(it.plane, 10.0))
            await it.ask(post("/v1/chat/completions", CHAT))
            it.plane.swept_at += 0.001  # the loop has turned between the two
        engine.stop()

    with caplog.at_level(logging.ERROR, "gateway.worker"):
        run(scene())
    (line,) = [record.getMessage() for record in caplog.records if "served nobody" in record.getMessage()]
    named = ("POST /v1/chat/completions", "operation chat", "peer 127.0.0.1", f"bytes of body {len(CHAT)}")
    assert all(text in line for text in named), line
    assert "for 60 s" in line and "model_in_body" in line


def test_the_route_of_a_translated_request_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that is translated is named with its route."""
    watch: list[StallWatch] = []
    monkeypatch.setattr(translators, "read_generation", stalling(translators.read_generation, watch))

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = f"version: 1\nengines:\n  it: {{endpoints: ['{engine.url}']}}\nroutes:\n  - {{name: all, engine: it}}\n"
        async with stage(text, tmp_path) as it:
            watch.append(StallWatch(it.plane, 10.0))
            await it.ask(post("/v1/chat/completions", CHAT))
        engine.stop()

    with caplog.at_level(logging.ERROR, "gateway.worker"):
        run(scene())
    (line,) = [record.getMessage() for record in caplog.records if "served nobody" in record.getMessage()]
    assert "route all" in line and "POST /v1/chat/completions" in line, line


@pytest.mark.pure_python
def test_a_grpc_call_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call is named by its path and its peer."""
    watch: list[StallWatch] = []
    monkeypatch.setattr(unary_call, "whole_message", stalling(unary_call.whole_message, watch))

    async def scene() -> None:
        engine = await GrpcEngine().start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            watch.append(StallWatch(it.plane, 10.0))
            client = await it.grpc()
            assert (await client.ask(request())).status == 0
        await engine.stop()

    with caplog.at_level(logging.ERROR, "gateway.worker"):
        run(scene())
    (line,) = [record.getMessage() for record in caplog.records if "served nobody" in record.getMessage()]
    assert "/inference.GRPCInferenceService/ModelInfer" in line and "peer 127.0.0.1" in line, line


def test_a_loop_that_turns_is_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said while the loop turns, or of a stall outside of requests but where it is."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = f"version: 1\nengines:\n  it: {{endpoints: ['{engine.url}']}}\nroutes:\n  - {{name: all, engine: it}}\n"
        async with stage(text, tmp_path) as it:
            watch = StallWatch(it.plane, 10.0)
            watch.look(it.plane.swept_at + 9)
            assert not caplog.records
            watch.look(it.plane.swept_at + 11)
            assert "no request" in caplog.records[-1].getMessage()
        engine.stop()

    run(scene())
