"""A TCP proxy that delays answers or falls silent, to imitate a slow network, a slow server or a lost route."""

import asyncio
import contextlib
import ssl
import threading
from dataclasses import dataclass
from typing import Self


@dataclass(eq=False)
class _Connection:
    ways: list[asyncio.Task[None]]  # one for each direction
    is_silent: bool = False


class SlowProxy:
    """A proxy from 127.0.0.1:`port` to a server's port; `delay` holds back each further piece of an answer by this many
    seconds."""

    def __init__(self, server_port: int, tls: ssl.SSLContext | None = None) -> None:
        """With `tls` clients connect by TLS, and the proxy connects to the server without."""
        self._server_port = server_port
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[_Connection] = set()
        self.delay = 0.0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls), self._loop
        )
        self.port = starting.result(120).sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def fall_silent(self) -> int:
        """Pass nothing more on the present connections, and leave them open, as where a NAT has lost its state; later
        connections pass. Returns their number."""

        async def silence() -> int:
            connections, self._connections = self._connections, set()
            for connection in connections:
                connection.is_silent = True
                for way in connection.ways:
                    way.cancel()
            return len(connections)

        return asyncio.run_coroutine_threadsafe(silence(), self._loop).result(120)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.ensure_future(way) for way in (self._pass(reader, back, False), self._pass(there, writer, True))
        ]
        connection = _Connection(ways)
        self._connections.add(connection)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if connection.is_silent:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()  # until the proxy ends
        finally:
            self._connections.discard(connection)
            for way in ways:
                way.cancel()
            writer.close()
            back.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if is_slow and self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
