"""One client connection keeps no engine from the others: its share of their connections, and replies read ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from h2.settings import SettingCodes

from tests.dataplane.grpc.stage import grpc_stage
from tests.dataplane.stage import OK, Engine, get, rules, run, until

NO_WINDOW = {SettingCodes.INITIAL_WINDOW_SIZE: 0}
MUCH_WINDOW = {SettingCodes.INITIAL_WINDOW_SIZE: 4 << 20}
MB = 1 << 20
SIZE = MB // 2  # more than is read at once
PATH = "/v2/models/m"


def reply_of(size: int) -> Any:
    """A script that answers with a reply of this size, and to other paths with a short one."""

    async def script(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
        is_short = not received.line.startswith(f"GET {PATH} ")
        writer.write(OK if is_short else b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))

    return script


@pytest.mark.parametrize("share, most", [("", 4), ("25%", 2), ("1%", 1)])
def test_a_client_connection_has_a_share_of_an_endpoints_connections(share: str, most: int, tmp_path: Path) -> None:
    """One HTTP/2 connection with window 0 and many requests holds its share and no more: another client is served at
    once, and the requests beyond the share are answered when the client reads."""

    async def scene() -> None:
        engine = Engine(reply_of(SIZE))
        await engine.start()
        options = "connections: {max_connections: 8, max_pending: 2%s}" % (share and f", max_client_share: {share}")
        limits = {"read_ahead_bytes": 0}
        async with grpc_stage(rules(engine, options=options), tmp_path, limits=limits) as it:
            client = await it.grpc(settings=NO_WINDOW)
            (endpoint,) = it.endpoints()
            calls = [client.request("GET", PATH, ended=True) for _ in range(12)]
            await until(lambda: sum(bool(call.fields) for call in calls) == most)
            for path in ("/v2/models/x", "/v2/models/y"):
                assert (await it.ask(get(path))).body == b'{"ok":true}'
            assert endpoint.pool.num_busy <= most + 1
            calls.pop().reset()  # one that waits
            client.h2.update_settings(MUCH_WINDOW)
            client.flush()
            for call in calls:
                assert not (await call.over()).was_reset
                assert (call.value(":status"), len(call.data)) == ("200", SIZE)
            assert not endpoint.pool.num_busy
        engine.stop()

    run(scene())


@pytest.mark.parametrize("is_http2", [True, False])
@pytest.mark.parametrize("bound, is_read", [(MB, True), (MB // 8, False)])
def test_a_short_reply_is_read_ahead(is_http2: bool, bound: int, is_read: bool, tmp_path: Path) -> None:
    """A reply that its client does not take is read to its end, up to the bound, and its connection serves others; the
    client gets it whole."""

    async def scene() -> None:
        size = 24 * MB if not is_http2 else SIZE  # more than the kernel holds for a socket
        engine = Engine(reply_of(size))
        await engine.start()
        options = "connections: {max_connections: 1, max_pending: 2}"
        limits = {"read_ahead_bytes": bound if is_http2 else 24 * bound, "max_read_ahead_bytes": 48 * MB}
        async with grpc_stage(rules(engine, options=options), tmp_path, limits=limits) as it:
            (endpoint,) = it.endpoints()
            call = client = None
            if is_http2:
                peer = await it.grpc(settings=NO_WINDOW)
                call = peer.request("GET", PATH, ended=True)
                await until(lambda: call.fields)
            else:
                client = await it.client()
                client.writer.transport.pause_reading()
                await client.send(get(PATH))
                await until(lambda: any(getattr(each, "is_paused", False) for each in it.plane.connections))
            if is_read:
                await until(lambda: not endpoint.pool.num_busy)
                assert it.plane.read_ahead.total
                assert (await it.ask(get("/v2/models/x"))).body == b'{"ok":true}'
            else:
                assert endpoint.pool.num_busy == 1 and not it.plane.read_ahead.total
            if call is not None:
                call.peer.h2.update_settings(MUCH_WINDOW)
                call.peer.flush()
                assert len((await call.over()).data) == size
            elif client is not None:
                client.writer.transport.resume_reading()
                assert len((await client.reply()).body) == size
            await until(lambda: not it.plane.read_ahead.total)
        engine.stop()

    run(scene())


def test_what_is_read_ahead_of_all_replies_is_bounded(tmp_path: Path) -> None:
    """Beyond `--max-read-ahead-bytes` replies wait for their clients; what was read of those that leave is free."""

    async def scene() -> None:
        engine = Engine(reply_of(SIZE))
        await engine.start()
        limits = {"max_read_ahead_bytes": SIZE}
        async with grpc_stage(rules(engine), tmp_path, limits=limits) as it:
            client = await it.grpc(settings=NO_WINDOW)
            (endpoint,) = it.endpoints()
            calls = [client.request("GET", PATH, ended=True) for _ in range(3)]
            await until(lambda: all(call.fields for call in calls))
            await until(lambda: endpoint.pool.num_busy == 2)
            assert 0 < it.plane.read_ahead.total <= SIZE
            for call in calls:
                call.reset()
            await until(lambda: not it.plane.read_ahead.total)
        engine.stop()

    run(scene())
