"""Malformed requests cause no hang, no error reported to the event loop, and no leak."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataplane.stage import DEADLINE, Engine, Stage, post, rules, run, stage

PARTS = st.sampled_from(
    [
        b"POST /v2/models/m/infer HTTP/1.1\r\n",
        b"GET /v2/models/m HTTP/1.1\r\n",
        b"HEAD / HTTP/1.0\r\n",
        b"Host: a\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Expect: 100-continue\r\n",
        b"X-Request-Id: a\r\n",
        b"Inference-Header-Content-Length: 2\r\n",
        b"\r\n",
        b"\n",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"{}",
        b"\x00",
        b" ",
        post(),
    ]
)
REQUESTS = st.lists(st.one_of(PARTS, PARTS, st.binary(max_size=12)), max_size=12)
LIMITS = {"header_timeout": 0.05, "body_timeout": 0.05, "idle_timeout": 0.05, "max_body_bytes": 1000}


async def throw(it: Stage, pieces: list[bytes]) -> None:
    """Send the pieces one by one and read the reply; the gateway must close the connection by itself."""
    client = await it.client()
    try:
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0)
        client.writer.transport.set_write_buffer_limits(0)
        answer = await asyncio.wait_for(client.reader.read(), DEADLINE)
    except ConnectionError:
        return
    assert b"Traceback" not in answer
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(REQUESTS, min_size=12, max_size=12))
def test_malformed_requests_come_to_an_end(many: list[list[bytes]]) -> None:
    """Random bytes, in random pieces, on many connections at once: each gets a reply or is closed in time, nothing
    remains (see `stage`), and a good request is still served."""

    async def scene(tmp_path: Path) -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path, limits=LIMITS) as it:
            it.plane._sweeper.cancel()
            sweeping = asyncio.ensure_future(sweep_often(it))
            await asyncio.gather(*[throw(it, pieces) for pieces in many])
            assert (await it.ask(post())).status == 200
            sweeping.cancel()
        engine.stop()

    with tempfile.TemporaryDirectory() as folder:
        run(scene(Path(folder)))


async def sweep_often(it: Stage) -> None:
    """Sweep more often than the data plane's once a second."""
    while True:
        await asyncio.sleep(0.02)
        now = asyncio.get_running_loop().time()
        for connection in list(it.plane.connections):
            connection.sweep(now)
