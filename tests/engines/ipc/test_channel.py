"""The two ends of a channel: the host's, which never blocks, and an instance's, which does."""

import asyncio
import os
import threading

import pytest

from engines.ipc import protocol
from engines.ipc.arena import Arena, Mapping, open_shared_file
from engines.ipc.arrays import ArrayStore
from engines.ipc.channel import PIPE_BYTES, Channel, open_pipe
from engines.ipc.host_connection import HostConnection, HostGoneError


def echo(connection: HostConnection) -> None:
    """Send every message back until the host is gone."""
    try:
        while True:
            kind, _, *rest = connection.next_work()
            connection.send(kind, *rest)
    except HostGoneError:
        pass


@pytest.mark.parametrize("size", [0, 1, 100_000, 3 * PIPE_BYTES])
def test_messages_of_any_size_come_whole_and_in_order(size: int) -> None:
    """Messages arrive complete and in order, also if they are longer than a pipe's buffer. The instance ends with the
    host."""

    async def run() -> list[tuple[int, bytes]]:
        (taken, outgoing), (incoming, given) = open_pipe(), open_pipe()
        sent, received = open_shared_file(), open_shared_file()
        store = ArrayStore(Arena(os.dup(received)), Mapping(os.dup(sent)))
        thread = threading.Thread(target=echo, args=(HostConnection(taken, given, store),))
        thread.start()
        come: list[tuple[int, bytes]] = []
        is_over = asyncio.Event()

        def take(message: tuple[int, tuple[int, ...], int, bytes]) -> None:
            come.append((message[2], message[3]))
            if len(come) == 5:
                is_over.set()

        loop = asyncio.get_running_loop()
        channel = Channel(loop, outgoing, incoming, Arena(sent), Mapping(received), take)
        for number in range(5):
            channel.send(protocol.EXECUTE, number, b"x" * size)
        async with asyncio.timeout(120):
            await is_over.wait()
        channel.close()
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
        os.close(taken)
        os.close(given)
        return come

    assert asyncio.run(run()) == [(number, b"x" * size) for number in range(5)]
