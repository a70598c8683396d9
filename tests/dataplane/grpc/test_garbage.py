"""Calls leave no work to the garbage collector, so the next call finds the same memory in the processor's cache."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dataplane.grpc.peers import STREAM, GrpcClient, GrpcEngine, echo
from tests.dataplane.grpc.stage import GrpcStage, request
from tests.dataplane.grpc.test_engine_peers import scene


@pytest.fixture
def uncollected() -> Iterator[list[object]]:
    """Objects that the garbage collector finds once a test enables DEBUG_SAVEALL."""
    gc.collect()
    gc.disable()
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("path", [STREAM, "/inference.GRPCInferenceService/ModelInfer"])
def test_calls_leave_nothing_behind(tmp_path: Path, uncollected: list[object], path: str) -> None:
    found: list[str] = []

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        sent = request(raw_input_contents=[bytes(64)])
        for _ in range(20):  # so that plans, layouts and tables exist
            await client.ask(sent, path=path)
        gc.collect()
        for _ in range(20):
            assert (await client.ask(sent, path=path)).status == 0
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.extend(f"{type(each).__module__}.{type(each).__name__}" for each in uncollected)

    scene(tmp_path, play, GrpcEngine(echo))
    assert [each for each in found if each.startswith("gateway.")] == []
