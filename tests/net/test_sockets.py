"""Sockets: how a connection ends for its peer."""

import asyncio
import socket

import pytest
import uvloop

from gateway.net.sockets import reset


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_reset_is_no_orderly_end(loop_factory) -> None:  # type: ignore[no-untyped-def]
    """The peer of a connection that is reset gets an error in place of the end of the data."""
    with socket.create_server(("127.0.0.1", 0)) as server, asyncio.Runner(loop_factory=loop_factory) as runner:

        async def scene() -> None:
            _, writer = await asyncio.open_connection(*server.getsockname())
            accepted, _ = server.accept()
            with accepted:
                reset(writer.transport)
                accepted.settimeout(30)
                with pytest.raises(ConnectionResetError):
                    await asyncio.to_thread(accepted.recv, 1)

        runner.run(scene())
