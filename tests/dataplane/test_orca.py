"""Engine loads in replies."""

import asyncio
from pathlib import Path

import pytest

from gateway.dataplane.context.worker_counters import counters_of
from gateway.protocol.engine_load import Load
from tests.dataplane.stage import Engine, ReceivedRequest, post, rules, run, stage

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n%b\r\n{}"


@pytest.mark.parametrize(
    "field, load",
    [
        (b"", None),
        (b"endpoint-load-metrics: TEXT named_metrics.kv_cache_utilization=0.5\r\n", Load(0, 0, 0.5)),
        (b'endpoint-load-metrics: JSON {"named_metrics": {"num_requests_waiting": 3}}\r\n', Load(0, 3, None)),
        (b"endpoint-load-metrics: nonsense\r\n", None),
    ],
)
def test_loads_in_replies(tmp_path: Path, field: bytes, load: Load | None) -> None:
    """With `load: {source: orca}` each request has the field that requests the engine's load, and the balancing and the
    counters use the reply's value."""

    async def tells(
        engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(REPLY % field)

    async def scene() -> None:
        engine = Engine(tells)
        await engine.start()
        async with stage(rules(engine, options="load: {source: orca}"), tmp_path) as it:
            assert (await it.ask(post())).status == 200
            assert it.endpoints()[0].load == load
            assert counters_of(it.plane).loads == ({("it", engine.url): load} if load else {})
        assert engine.received[0].value("endpoint-load-metrics-format") == "text"
        engine.stop()

    run(scene())
