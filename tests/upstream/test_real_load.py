"""The load that a real server reports."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from gateway.config.engine_specs import EndpointSpec, EngineSpec, LoadSpec
from gateway.demo.triton import TritonProcess
from gateway.protocol.engine_load import Load, Readiness
from gateway.upstream.probe import EndpointProbe
from tests.dataplane.stage import run

SLEEP = {"inputs": [{"name": "seconds", "shape": [1], "datatype": "FP32", "data": [0.5]}]}


@pytest.mark.triton
def test_triton_tells_what_waits_in_it(triton: TritonProcess) -> None:
    """Triton's metrics, on their own port, count the requests that wait for a busy model."""
    port = triton.metrics_url.rpartition(":")[2].partition("/")[0]
    spec = EngineSpec("it", (EndpointSpec(triton.http_url),), load=LoadSpec("metrics", f":{port}/metrics"))

    async def scene() -> None:
        probe = EndpointProbe(spec, triton.http_url)
        async with asyncio.timeout(120):  # a busy machine may be slow
            while await probe.check() is not Readiness.READY or await probe.load() != Load(0, 0, None):
                await asyncio.sleep(0.01)
        async with httpx.AsyncClient(timeout=120) as client:
            url = f"{triton.http_url}/v2/models/sleeper/infer"
            asking = [asyncio.create_task(client.post(url, content=json.dumps(SLEEP))) for _ in range(4)]
            async with asyncio.timeout(120):
                while (load := await probe.load()) is None or not load.waiting:
                    await asyncio.sleep(0.01)
            assert load.waiting <= 4
            assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        await probe.close()

    run(scene())
